"""Which workers with a GPU a worker without one spares: it leaves them the jobs that are predicted to end sooner there.

The judgement of each job is in the script of the claim (`workers/queue/scripts/parts/sparing.lua`).
"""

from collections.abc import Sequence

from warpdesk_server.workers.queue.reports import WorkerReport
from warpdesk_server.workers.settings import Takes


def gpu_workers(takes: Takes, others: Sequence[WorkerReport]) -> tuple[str, ...]:
    """The names of those that compute on a GPU now, and take in their own process what a worker that `takes` this does.

    One that warms up, or whose GPU is quarantined, is not among them. Of tasks nothing is predicted, so none is left.
    """
    if takes == "tasks":
        return ()
    alike = ("long", "all") if takes == "long" else ("both", "all", "quick")
    return tuple(
        sorted(
            report.name
            for report in others
            if report.takes in alike
            and report.able
            and report.gpu is not None
            and report.gpu.state in ("healthy", "degraded")
        )
    )
