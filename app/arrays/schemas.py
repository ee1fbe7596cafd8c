"""Schemas of arrays: one array, and a page of the key's own."""

from typing import Annotated

from pydantic import Field

from warpdesk.models import ArrayDescription, DType, Reply

DEFAULT_DTYPE: DType = "float64"


class ArrayPage(Reply):
    arrays: list[ArrayDescription]
    next: Annotated[str | None, Field(description="URL of the next, older page")]
    stored_bytes: Annotated[
        int,
        Field(
            description="bytes of the disk that the key's arrays and results take, and that results of its jobs were "
            "promised; each file counts as whole blocks of 4,096"
        ),
    ]
    max_stored_bytes: Annotated[int, Field(description="the key's quota of them")]
    round_bytes: Annotated[
        int | None,
        Field(
            description="bytes of the masked vectors of the key's live rounds, those to come among them; null while "
            "the ledger does not answer"
        ),
    ]
    max_round_bytes: Annotated[int, Field(description="the key's quota of those")]
