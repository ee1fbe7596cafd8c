"""The constants that the Lua scripts share with Python: Redis keys, lifetimes, states and limits.

A script reads them as `const.NAME`. `workers.queue.scripts.assembly` writes the table, with those that it uses.
"""

from collections.abc import Mapping

from warpdesk.models import State
from warpdesk_server.workers.queue import keys
from warpdesk_server.workers.queue.counts import DEVICE, HOURLY
from warpdesk_server.workers.queue.protocol import (
    KINDS,
    MAX_ATTEMPTS,
    MAX_OVERTAKES,
    MAX_STRIKES,
    PATIENCE_TIMES,
    PRIORITIES,
)

Constant = str | int | tuple[str, ...] | Mapping[str, int]

CONSTANTS: Mapping[str, Constant] = {
    **{name: value for name, value in vars(keys).items() if name.isupper()},
    **{state.name: state.value for state in State},
    "PRIORITIES": PRIORITIES,
    "KINDS": KINDS,
    "MAX_ATTEMPTS": MAX_ATTEMPTS,
    "MAX_STRIKES": MAX_STRIKES,
    "PATIENCE_TIMES": PATIENCE_TIMES,
    "MAX_OVERTAKES": MAX_OVERTAKES,
    # RQ's own clean-up, which any `rq info` triggers, fails what is past its score in its registry: never ours, whose
    # leases say who is abandoned.
    "RQ_EXECUTION_SECONDS": 30 * keys.DAY_SECONDS,
    "KEPT_FOR_NEWCOMERS": 20,  # one part in so many of a shared queue is for owners that have no job live
    # A lane that nobody claimed from for so long goes before lanes of higher priority, once.
    "AGING_SECONDS": {"realtime": 0, "batch": 5, "research": 20},
    # For how long a worker that waits may be handed jobs without a word of it, which is longer than it waits at a time.
    "HOLDS_SECONDS": 2,
    # The lease of what it is handed, which it renews at once: one that stands still keeps a job from others no longer.
    "HANDED_LEASE_SECONDS": 5,
    "WINDOW": 256,  # ids looked at for one batch: each costs a look at its record, while Redis does nothing else
    "PASSED": 4096,  # ids whose time is over, on the way to the first that can be claimed: the next claim goes on there
    # Ids that a worker without a GPU looks at for one that ends sooner there. It may be behind more of them where the
    # GPU is more than so many times as quick: then the CPU helps little.
    "SPARED": 64,
    "UNPREDICTED_SECONDS": 1,  # for which such a worker leaves a job of which nothing is predicted to a free GPU
    "OWNERS": 64,  # of a lane, looked at for one batch
    "TOLD_BYTES": 16_384,  # a larger record is not published with the job's last event: every API process would get it
    "REPORTED_STEPS": 10_000,  # of a task, in its stream; a worker sends fewer (`workers.child.tasks`)
    "FOLLOWERS_OF_ONE": 256,  # jobs that one computes for: they all end in one step. The next computes for those after
    "DEVICE": DEVICE,
    "HOURLY": HOURLY,
}
