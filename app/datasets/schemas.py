"""Schemas of datasets: a new one, rows to append, and a part of one as the input of a job."""

import re
from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from warpdesk.models import ARRAY_ID, DATASET_NAME, Body
from warpdesk_server.app.datasets import times
from warpdesk_server.app.kit.limits import ASSETS_OF_INPUT, DATASET_ASSETS, DATASET_COLUMNS, ROWS_AT_ONCE

COLUMN = r"^[A-Za-z_][A-Za-z0-9._-]{0,63}$"
# No comma: a query names several. No blank at an end.
ASSET = r"^[^\x00-\x20\x7f,](?:[^\x00-\x1f\x7f,]{0,62}[^\x00-\x20\x7f,])?$"
_ASSET = re.compile(ASSET)

# The name by which the times of a dataset are read, as if they were a column of it.
TIME = "time"


def _time(value: Any) -> int:
    try:
        return times.parse(value)
    except ValueError as error:
        raise PydanticCustomError("time", "{sentence}", {"sentence": str(error)}) from None


def _asset(value: str) -> str:
    if not _ASSET.fullmatch(value):
        sentence = "{name} is not 1 to 64 printable characters without a comma, or has a blank at an end"
        raise PydanticCustomError("asset", sentence, {"name": repr(value[:80])})
    return value


def _unique(value: list[str]) -> list[str]:
    if len(set(value)) < len(value):
        (twice, _), *_ = Counter(value).most_common(1)
        raise PydanticCustomError("twice", "{name} is given twice", {"name": twice})
    return value


def _selected(value: Any) -> Any:
    """Assets of a job's input: one name, or a list of names."""
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names) or not 1 <= len(names) <= ASSETS_OF_INPUT:
        sentence = "Input should be the name of an asset, or a list of 1 to {most} names"
        raise PydanticCustomError("assets", sentence, {"most": ASSETS_OF_INPUT})
    _unique(names)
    return value


def _numbers(value: Any) -> Any:
    if type(value) is not list and not (isinstance(value, dict) and value.keys() == {"array"}):
        raise PydanticCustomError(
            "block", "Input should be a list of rows, or an array's id in an object: array: blake3:..."
        )
    return value


Time = Annotated[
    int,
    BeforeValidator(_time),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "description": "Whole nanoseconds since 1970 in UTC, or text with a time zone (ISO 8601)",
            "examples": ["2026-11-27T21:00:00Z"],
        }
    ),
]
Asset = Annotated[str, AfterValidator(_asset), Field(json_schema_extra={"pattern": ASSET})]
Assets = Annotated[list[Asset], Field(max_length=DATASET_ASSETS), AfterValidator(_unique)]


class UploadedArray(Body):
    """An array that was uploaded before."""

    array: Annotated[str, Field(pattern=ARRAY_ID)]


class NewDataset(Body):
    """A dataset without rows. Its columns never change; assets may be added by rows."""

    columns: Annotated[
        dict[Annotated[str, Field(pattern=COLUMN)], Literal["float64", "float32"]],
        Field(
            min_length=1,
            max_length=DATASET_COLUMNS,
            description="Names and dtypes. A missing number is NaN, which no integer dtype has",
            examples=[{"close": "float64", "volume": "float64"}],
        ),
    ]
    assets: Assets = Field(default_factory=list)


def _kind_of_times(value: Any) -> str:
    return "UploadedArray" if isinstance(value, dict | UploadedArray) else "Times"


# Parts of an error's location that pydantic adds for the kind of times, and that are not in the request.
UNION_TAGS = frozenset({"UploadedArray", "Times"})


class NewRows(Body):
    """Rows of a dataset: a time each, and numbers of some assets in every column."""

    times: Annotated[
        Annotated[list[Time], Field(min_length=1, max_length=ROWS_AT_ONCE), Tag("Times")]
        | Annotated[UploadedArray, Tag("UploadedArray")],
        Discriminator(_kind_of_times),
        Field(description="Growing, of the rows; or an uploaded array of int64"),
    ]
    assets: Annotated[
        Assets | None,
        Field(
            description="Those of each block, in this order; null: all that the dataset has, in its order. One that "
            "it does not have is added to it"
        ),
    ] = None
    columns: Annotated[
        dict[str, Annotated[Any, BeforeValidator(_numbers)]],
        Field(
            description="A block (time, asset) for every column of the dataset: nested lists, null is NaN; or "
            "{array: id} of an uploaded array of that dtype and shape",
            examples=[{"close": [[187.2, None]], "volume": [[1200.0, None]]}],
        ),
    ]
    correct: Annotated[
        bool,
        Field(
            description="Whether other numbers at a time that is there, and rows before the last, make a new version"
        ),
    ] = False


class DatasetInput(Body):
    """A job's input that is read from a dataset: one column, as an array (asset, time)."""

    dataset: Annotated[str, Field(json_schema_extra={"pattern": DATASET_NAME})]
    column: str
    first: Annotated[Time | None, Field(alias="from", description="The first time; null: the first row")] = None
    end: Annotated[Time | None, Field(alias="to", description="Times before it; null: to the last row")] = None
    assets: Annotated[
        Any,
        BeforeValidator(lambda value: value if value is None else _selected(value)),
        WithJsonSchema(
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
        ),
        Field(description="In this order; null: all. One name instead of a list gives an array (time,)"),
    ] = None
    as_of: Annotated[
        int | None, Field(ge=0, description="The version that is read; null: the latest, which the job then names")
    ] = None
