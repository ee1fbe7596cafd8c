"""What the routes of one application share, made when it starts."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from app.limits import Limits
from app.metrics import Metrics
from app.queue import Completions, Queue
from app.settings import Settings
from kernels.operation import Operation
from workers.store import Store


@dataclass(frozen=True)
class Desk:
    settings: Settings
    operations: Mapping[str, Operation]
    store: Store
    queue: Queue
    completions: Completions
    metrics: Metrics
    limits: Limits
    threads: ThreadPoolExecutor  # in which uploads are written


async def _of(request: Request) -> Desk:  # (FastAPI would call a plain function in a thread)
    desk: Desk = request.app.state.desk
    return desk


Shared = Annotated[Desk, Depends(_of)]
