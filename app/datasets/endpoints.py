"""Routes of datasets: make one, append rows, read a range of them, list, describe and delete."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import pydantic_core
from fastapi import APIRouter, Query, Request, Response

from warpdesk import models
from warpdesk.arrays import as_json
from warpdesk.models import Reply
from warpdesk_server.app.access.auth import Reader, Submitter
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.arrays import ndarray, storage
from warpdesk_server.app.arrays.nested import from_nested
from warpdesk_server.app.datasets import schemas, slices, times
from warpdesk_server.app.datasets.changes import Rows
from warpdesk_server.app.datasets.collection import Summary, unknown
from warpdesk_server.app.http import bodies, downloads
from warpdesk_server.app.kit import durability, errors, limits
from warpdesk_server.app.kit.errors import refuse_at
from warpdesk_server.app.kit.schemas import moment
from warpdesk_server.app.services import Services, ServicesDep

router = APIRouter(tags=["datasets"])

JSON, NPY = "application/json", "application/x-npy"

_NAME = re.compile(models.DATASET_NAME)
_CALLER = ("unauthorized", "missing-scope", "foreign-host")
_BODY = (
    "malformed-json", "duplicate-key", "disconnected", "body-too-large", "unsupported-media-type", "invalid-request",
    "storage-quota", "storage-full",
)  # fmt: skip
_VERSION = "Warpdesk-Dataset-Version"
_VERSIONED = {_VERSION: {"description": "The version that was read: `as_of` of it", "schema": {"type": "integer"}}}


@router.put(
    "/v1/datasets/{name}",
    summary="Make a dataset",
    status_code=201,
    response_model=models.DatasetDescription,
    responses={
        200: {"model": models.DatasetDescription, "description": "It is there, with the same columns and assets"},
        201: {"headers": {"Location": {"description": "The dataset", "schema": {"type": "string"}}}},
        **errors.documented(*_CALLER, *_BODY, "dataset-exists", "too-many-datasets"),
    },
    openapi_extra={"requestBody": errors.body(schemas.NewDataset)},
)
async def create(name: str, request: Request, caller: Submitter, services: ServicesDep) -> Response:
    """A named table of the key: rows by time, and in each column a number for every asset. It has no rows yet, and
    is kept until it is deleted."""
    services.submission_rate.take(caller.id)
    if not _NAME.fullmatch(name):
        sentence = f"{name[:80]!r} cannot be the name of a dataset: 1 to 64 of A-Z a-z 0-9 . _ -, not . _ - first"
        raise refuse_at("invalid-request", "/name", sentence)
    body = await bodies.read_json(
        request,
        services.settings.max_body,
        lambda sent: bodies.fitted(schemas.NewDataset, bodies.parse(sent)),
        values=_values(services),
    )
    if schemas.TIME in body.columns:
        sentence = f"{schemas.TIME!r} is the name of the times themselves, and of no column"
        raise refuse_at("invalid-request", f"/columns/{schemas.TIME}", sentence)

    def make() -> tuple[bool, Summary]:
        fresh = services.datasets.create(caller.id, name, body.columns, body.assets)
        return fresh, services.datasets.summary(caller.id, name)

    with storage.refused():
        fresh, summary = await services.dataset_threads.run(caller.id, make)
    return _answer(
        _described(summary), 201 if fresh else 200, _durable(services) | {"Location": f"/v1/datasets/{name}"}
    )


@router.get(
    "/v1/datasets",
    summary="List your datasets, by name",
    response_model=models.DatasetPage,
    responses=errors.documented(*_CALLER),
)
async def listed(caller: Reader, services: ServicesDep) -> Response:
    found = await services.dataset_threads.run(caller.id, lambda: list(services.datasets.summaries(caller.id)))
    stored_bytes, max_stored_bytes = services.store.stored(caller.id)
    return _answer(
        models.DatasetPage(
            datasets=[_summary(summary) for summary in found],
            max_datasets=services.datasets.most,
            stored_bytes=stored_bytes,
            max_stored_bytes=max_stored_bytes,
        )
    )


@router.get(
    "/v1/datasets/{name}",
    summary="Describe a dataset",
    response_model=models.DatasetDescription,
    responses=errors.documented(*_CALLER, "unknown-dataset"),
)
async def described(name: str, caller: Reader, services: ServicesDep) -> Response:
    _require_a_name(name)
    summary = await services.dataset_threads.run(caller.id, lambda: services.datasets.summary(caller.id, name))
    return _answer(_described(summary))


@router.delete(
    "/v1/datasets/{name}",
    summary="Delete a dataset",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "Deleted"}, **errors.documented(*_CALLER, "unknown-dataset")},
)
async def delete(name: str, caller: Submitter, services: ServicesDep) -> Response:
    """With all of its versions. Jobs that were submitted with it go on: each has an array of its own."""
    _require_a_name(name)
    await services.dataset_threads.run(caller.id, lambda: services.datasets.delete(caller.id, name))
    return Response(status_code=204)


@router.post(
    "/v1/datasets/{name}/rows",
    summary="Append rows to a dataset",
    response_model=models.RowsAppended,
    responses={
        200: {"headers": durability.DOCUMENTED},
        **errors.documented(*_CALLER, *_BODY, "unknown-dataset", "dataset-exists", "rows-differ"),
    },
    openapi_extra={"requestBody": errors.body(schemas.NewRows)},
)
async def append(name: str, request: Request, caller: Submitter, services: ServicesDep) -> Response:
    """All rows of a request or none, and one new version of the dataset if they change anything. The same rows sent
    again change nothing. An asset that a row does not name is NaN there, and stays what it is if the row exists."""
    services.submission_rate.take(caller.id)
    _require_a_name(name)
    body = await bodies.read_json(
        request,
        services.settings.max_body,
        lambda sent: bodies.fitted(schemas.NewRows, bodies.parse(sent), schemas.UNION_TAGS),
        values=_values(services),
    )

    def extend() -> models.RowsAppended:
        columns = services.datasets.summary(caller.id, name).columns
        rows = _rows(services, caller, name, columns, body)
        change, summary = services.datasets.append(caller.id, name, rows, correct=body.correct)
        return models.RowsAppended(
            dataset=name,
            version=summary.version,
            rows=summary.rows,
            added=change.added,
            corrected=change.corrected,
            unchanged=change.unchanged,
            new_assets=list(change.new_assets),
        )

    with storage.refused():
        answer = await services.dataset_threads.run(caller.id, extend)
    return _answer(answer, 200, _durable(services))


@router.get(
    "/v1/datasets/{name}/rows",
    summary="Read a range of a dataset's rows",
    response_model=models.DatasetRows,
    responses={
        200: {
            "description": "One column, as JSON, or with `Accept: application/x-npy` as an array (time, asset)",
            "content": {NPY: {"schema": {"type": "string", "format": "binary"}}},
            "headers": _VERSIONED,
        },
        **downloads.RANGED,
        **errors.documented(
            *_CALLER, "invalid-request", "unknown-dataset", "not-acceptable", "array-too-large", "storage-quota",
            "storage-full",
        ),
    },
    openapi_extra=downloads.RANGE,
)  # fmt: skip
async def rows(
    name: str,
    request: Request,
    caller: Reader,
    services: ServicesDep,
    column: Annotated[str, Query(description=f"`{schemas.TIME}` for the times themselves, int64 of shape (time,)")],
    first: Annotated[str | None, Query(alias="from", description="The first time, with a time zone")] = None,
    end: Annotated[str | None, Query(alias="to", description="Times before it")] = None,
    assets: Annotated[
        list[str] | None, Query(description="In this order; separated by commas or repeated; all without it")
    ] = None,
    as_of: Annotated[int | None, Query(ge=0, description="A version; the latest without it")] = None,
) -> Response:
    """A read that goes on elsewhere names the same version in `as_of`."""
    services.submission_rate.take(caller.id)
    _require_a_name(name)
    media_type = bodies.negotiate(request, JSON, NPY)
    between = {"from": _time(first, "from"), "to": _time(end, "to")}
    wanted = schemas.DatasetInput.model_validate(
        {"dataset": name, "column": column, "assets": _names(assets), "as_of": as_of, **between}
    )
    in_json = services.settings.max_result_numbers if media_type == JSON else None

    def found() -> tuple[int, Any]:
        room = slices.Room(services.store, services.settings.max_array)
        part = slices.read(services.datasets, room, caller.id, wanted, "/query", in_json)
        if media_type == JSON:
            return part.version, _document(wanted, part)
        stored = slices.stored(services.store, caller.id, part.numbers, services.settings.inline_ttl)
        return part.version, stored

    with storage.refused():
        version, content = await services.dataset_threads.run(caller.id, found)
    headers = {_VERSION: str(version), "Vary": "Accept"}
    if media_type == JSON:
        return Response(content, 200, headers, JSON)
    headers["ETag"] = f'"{content.id}"'
    return await downloads.download(request, services.store.path(caller.id, content.id), headers, NPY)


def _document(wanted: schemas.DatasetInput, part: slices.Slice) -> bytes:
    """The JSON of rows that were read."""
    return pydantic_core.to_json(
        {
            "dataset": wanted.dataset,
            "column": wanted.column,
            "version": part.version,
            "times": [times.text(time) for time in part.times.tolist()],
            "assets": part.assets,
            "data": [times.text(time) for time in part.times.tolist()]
            if wanted.column == schemas.TIME
            else as_json(part.numbers.T),
        }
    )


def _rows(services: Services, caller: Key, name: str, columns: Mapping[str, Any], body: schemas.NewRows) -> Rows:
    """The rows of a request as arrays, with the columns of the dataset. Raises a 422 for what does not fit."""
    missing, odd = [each for each in columns if each not in body.columns], body.columns.keys() - columns.keys()
    if missing or odd:
        sentence = f"{name} has the columns {', '.join(columns)}, and rows have all of them"
        if missing:
            raise refuse_at("invalid-request", "/columns", f"{', '.join(missing)} is missing: {sentence}")
        wrong = sorted(odd)[0]
        pointer = f"/columns/{errors.escape(wrong[:80])}"
        raise refuse_at("invalid-request", pointer, f"there is no column {wrong[:64]!r}: {sentence}")
    room = services.settings.max_inline_numbers
    found = _times(services, caller, body)
    blocks: dict[str, ndarray.Numbers] = {}
    size = found.nbytes
    for column, dtype in columns.items():
        given, pointer = body.columns[column], f"/columns/{errors.escape(column)}"
        if isinstance(given, list):
            block = from_nested(given, dtype, pointer, room)
            room -= block.size
        else:
            block = _uploaded(services, caller, given["array"], dtype, f"{pointer}/array", size)
        size += block.nbytes
        width = len(body.assets) if body.assets is not None else block.shape[-1] if block.ndim == 2 else 0
        if block.shape != (len(found), width):
            wanted = [len(found), width] if width else f"({len(found)}, assets)"
            sentence = f"{column} has the shape {list(block.shape)}; {len(found)} times and the assets need {wanted}"
            raise refuse_at("invalid-request", pointer, sentence)
        blocks[column] = block
    if len({block.shape for block in blocks.values()}) > 1:
        shapes = ", ".join(f"{column} {list(block.shape)}" for column, block in blocks.items())
        raise refuse_at("invalid-request", "/columns", f"the columns differ in shape: {shapes}")
    return Rows(found, body.assets, blocks)


def _times(services: Services, caller: Key, body: schemas.NewRows) -> ndarray.Numbers:
    if isinstance(body.times, schemas.UploadedArray):
        found = _uploaded(services, caller, body.times.array, "int64", "/times/array", 0)
        if found.ndim != 1 or not 1 <= len(found) <= limits.ROWS_AT_ONCE:
            sentence = f"times have the shape {list(found.shape)}; they need one axis of 1 to {limits.ROWS_AT_ONCE}"
            raise refuse_at("invalid-request", "/times", sentence)
        if int(found.min()) < times.FIRST:
            raise refuse_at("invalid-request", "/times", f"{int(found.min())} is no time: it is NumPy's NaT")
    else:
        found = np.array(body.times, np.int64)
    early = np.flatnonzero(found[1:] <= found[:-1])
    if len(early):
        place = int(early[0]) + 1
        before, after = (times.text(int(found[each])) for each in (place - 1, place))
        sentence = f"times have to grow: {after} follows {before}"
        raise refuse_at("invalid-request", f"/times/{place}", sentence)
    return found


def _uploaded(services: Services, caller: Key, array_id: str, dtype: str, pointer: str, size: int) -> ndarray.Numbers:
    """An uploaded array of the caller, for rows that have `size` bytes already."""
    stored = services.store.find(caller.id, array_id)
    if stored is None:
        raise refuse_at("invalid-request", pointer, f"there is no array {array_id[:80]!r}")
    if stored.info.dtype != dtype:
        raise refuse_at("invalid-request", pointer, f"the array is {stored.info.dtype}; {dtype} is needed")
    if (total := size + stored.info.nbytes) > limits.ROW_BYTES_AT_ONCE:
        sentence = f"the rows have {total} bytes or more; one request may append {limits.ROW_BYTES_AT_ONCE}"
        raise refuse_at("invalid-request", pointer, sentence)
    try:
        return ndarray.from_file(services.store.path(caller.id, array_id).read_bytes())
    except FileNotFoundError:
        raise refuse_at("invalid-request", pointer, f"there is no array {array_id[:80]!r}") from None


def _values(services: Services) -> int:
    """How many values a body of a dataset may have: numbers, times, and names of assets."""
    numbers = limits.JSON_VALUES * services.settings.max_inline_numbers
    return numbers + limits.DATASET_ASSETS + 2 * limits.JSON_KEYS


def _time(given: str | None, name: str) -> int | None:
    try:
        return None if given is None else times.parse(int(given) if re.fullmatch(r"-?\d{1,20}", given) else given)
    except ValueError as error:
        raise refuse_at("invalid-request", f"/query/{name}", str(error)) from None


def _names(given: list[str] | None) -> list[str] | None:
    """The assets of a query."""
    names = [name for name in ",".join(given or ()).split(",") if name]
    if not names:
        return None
    if len(names) > limits.ASSETS_OF_INPUT:
        sentence = f"{len(names)} assets are named; the limit is {limits.ASSETS_OF_INPUT}"
        raise refuse_at("invalid-request", "/query/assets", sentence)
    if len({*names}) < len(names):
        raise refuse_at("invalid-request", "/query/assets", "an asset is given twice")
    return names


def _require_a_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise unknown(name)


def _durable(services: Services) -> dict[str, str]:
    return {durability.HEADER: durability.of_array(services.admission.durability)}


def _answer(reply: Reply, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(reply.model_dump_json(), status, dict(headers or {}), JSON)


def _summary(found: Summary) -> models.DatasetSummary:
    return models.DatasetSummary(**_fields(found))


def _described(found: Summary) -> models.DatasetDescription:
    return models.DatasetDescription(**_fields(found), assets=list(found.assets))


def _fields(found: Summary) -> dict[str, Any]:
    return {
        "name": found.name,
        "columns": dict(found.columns),
        "asset_count": len(found.assets),
        "rows": found.rows,
        "first": None if found.first is None else times.text(found.first),
        "last": None if found.last is None else times.text(found.last),
        "version": found.version,
        "bytes": found.bytes,
        "created_at": moment(found.created_at),
        "changed_at": moment(found.changed_at),
    }
