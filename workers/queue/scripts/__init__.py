"""The transitions of jobs as Lua scripts: each is one atomic step in Redis, and all times come from Redis' clock.

    enqueue ─▶ queued ──claim──▶ running ──finish──▶ succeeded | failed | expired
                 ▲                 │  ▲│
                 │                 │  └┘ renew
                 └─finish (given back), reap (its worker is gone)
    cancel: queued, running or paused ─▶ canceled        reap: queued or paused past its deadline ─▶ expired
    pause: queued ─▶ paused, running ─finish─▶ paused (tasks alone)        resume: paused ─▶ queued
    claim, finish and reap of a shard: open ──▶ running ──▶ succeeded, while its job runs
    rerun: a dead letter (failed, struck or claimed too often) ─▶ queued

Each script is a file beside this one, which says what it takes and answers. What several share is in `parts`.

Two sets of keys change together: our records, which are the truth, and what RQ keeps about the same jobs, so that `rq
info` shows the service as it is. Scripts name keys they are not given (`workers.queue.keys`), so they need one primary,
not a cluster. They are called by their digest; `workers.queue.lua` loads them into a Redis that does not know them.

What is counted of the transitions is in the keys of `workers.queue.counts`. It is written at the end of each script, in
few commands however many jobs end in it, and what fails there is not counted, rather than a job's end undone.
"""

from warpdesk_server.workers.queue.scripts.assembly import assemble

ENQUEUE = assemble("enqueue")
CLAIM = assemble("claim")
CLAIM_SHARD = assemble("claim_shard")
LEAVE = assemble("leave")
RENEW = assemble("renew")
FINISH = assemble("finish")
REAP = assemble("reap")
EXPIRE_IF_OVERDUE = assemble("expire_if_overdue")
PROGRESS = assemble("progress")
POSITION = assemble("position")
WAITING_BY_OWNER = assemble("waiting_by_owner")
WAITING_TASKS = assemble("waiting_tasks")
QUEUES = assemble("queues")
STEP = assemble("step")
PAUSE = assemble("pause")
RESUME = assemble("resume")
CANCEL = assemble("cancel")
CANCEL_AND_CLOSE = assemble("cancel_and_close")
ERASE = assemble("erase")
RERUN = assemble("rerun")
FORBID = assemble("forbid")
SIGN = assemble("sign")
COUNT = assemble("count")
LAUNCHES = assemble("launches")
TAKE_SLOT = assemble("take_slot")
LEAVE_SLOT = assemble("leave_slot")
MAY = assemble("may")

# All of them: what an API process loads into a Redis that was restarted.
SCRIPTS = (
    ENQUEUE, CLAIM, CLAIM_SHARD, LEAVE, RENEW, FINISH, REAP, EXPIRE_IF_OVERDUE, PROGRESS, POSITION, WAITING_BY_OWNER,
    QUEUES, CANCEL, STEP, PAUSE, RESUME, CANCEL_AND_CLOSE, ERASE, RERUN, FORBID, SIGN, COUNT, LAUNCHES, TAKE_SLOT,
    LEAVE_SLOT, MAY, WAITING_TASKS,
)  # fmt: skip
