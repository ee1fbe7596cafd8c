"""The lead of a job in shards: the worker that has claimed the job, computes shards of it, and merges all.

Other workers claim shards of it from the same queue, each with a lease and a fence of its own. The lead claims the next
one whenever it is free, so a job is done even if nobody helps, and a shard that takes another worker too long is
claimed from that worker. Whatever becomes of a helper costs its shard. A lead that takes too long for a shard loses the
job to a worker that is free (`overtake` in Lua). What the lead's own attempt comes to, a death included, is what the
job's attempt comes to; the shards that are done by then stay.
"""

import time
from collections import Counter
from collections.abc import Sequence
from math import fsum

from warpdesk_server.workers.pipe import Answer
from warpdesk_server.workers.queue.protocol import (
    PATIENCE_TIMES,
    Failed,
    Provenance,
    Stopped,
    Succeeded,
)

# How often the lead asks whether the last shards are done, while others compute them: more seldom the longer it waits.
_LOOK_SECONDS, _LOOKS = (0.001, 0.05), 10
_LEAST_PATIENCE = 1.0
_UNKNOWN_PATIENCE = 30.0  # of a lead that has computed no shard


class Lead:
    """The times of a job in shards, as its lead measures them."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.again: int | None = None  # the shard whose arrays could not be merged
        self._again = set[int]()
        self._took: list[float] = []
        self._waits_since: float | None = None

    @property
    def patience(self) -> float:
        """Seconds for which the lead lets another worker compute a shard."""
        if not self._took:
            return _UNKNOWN_PATIENCE
        return max(_LEAST_PATIENCE, PATIENCE_TIMES * max(self._took))

    def wait_seconds(self) -> float:
        """Seconds until the lead asks again whether others have computed the last shards."""
        now = time.monotonic()
        self._waits_since = now if self._waits_since is None else self._waits_since
        least, most = _LOOK_SECONDS
        return min(most, max(least, (now - self._waits_since) / _LOOKS))

    def computed(self, seconds: float) -> None:
        """Note how long a shard took the lead."""
        self._took.append(seconds)

    def may_compute_again(self, number: int) -> bool:
        """Whether the lead computes the shard, whose arrays could not be merged: once, since then they are its own."""
        new = number not in self._again
        self._again.add(number)
        self.again = number
        return new

    def answered(self, answer: Answer, shards: Sequence[Provenance]) -> Answer:
        """The child's answer to the merge, as that of the whole job."""
        (outcome,) = answer.outcomes
        if isinstance(outcome, Stopped):
            outcome = Failed(code="operation-error", message=f"its shards cannot be merged: {outcome.reason}")
        elif isinstance(outcome, Succeeded):
            outcome = outcome.model_copy(update={"provenance": of_all(outcome.provenance, shards)})
        return answer.model_copy(update={"outcomes": (outcome,)})


def of_all(merge: Provenance, shards: Sequence[Provenance]) -> Provenance:
    """The provenance of a job in shards: of the backend that computed most of them, with the times of all together."""
    backends = Counter(shard.backend for shard in shards)
    (most, _), *_ = backends.most_common()
    first = next(shard for shard in shards if shard.backend == most)
    own = ("device", "device_uuid", "fallback_reason", "backend_reason")
    summed = ("copy_seconds", "kernel_seconds", "compute_seconds", "energy_joules", "cost_dollars")
    parts = [*shards, merge]
    seconds = [part.compute_seconds or 0.0 for part in parts]
    # The mean by time: what the API shows to a key is as if each part had had its device alone.
    share = fsum(part.device_share * took for part, took in zip(parts, seconds, strict=True)) / (fsum(seconds) or 1.0)
    return merge.model_copy(
        update={
            "backend": most,
            "shards": dict(backends),
            "device_share": share or 1.0,
            **{name: getattr(first, name) for name in own},
            **{name: _sum([getattr(part, name) for part in parts]) for name in summed},
        }
    )


def _sum(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return fsum(given) if given else None
