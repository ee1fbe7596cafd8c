"""The keys of the service in Redis: their names, types, contents and lifetimes.

Nothing else spells them; Python and Lua take them from here. A lane is a priority and a kind of work:
"<priority>-<kind>", or "<priority>" alone for quick jobs on any device (`workers.queue.protocol.KINDS`). Keys of a
lane, an owner, a worker or a job exist while they hold something.

    warpdesk:job:<id>                 hash      the job record (`workers.queue.records.JobRecord`); as long as its
                                                result and a day more, or a week as a dead letter
    warpdesk:job:<id>:<number>        hash      the record of a shard of a job: state, attempt, claim, worker, process,
                                                started_at, provenance, age in seconds; until the job has ended
    warpdesk:job:<id>:open            zset      the numbers of shards that nobody computes, with score 1 where only the
                                                worker that has the job may
    warpdesk:events:<id>              stream    the job's events: entry "<number>-0", field "event", an Event as JSON;
                                                as long as the record
    warpdesk:events:of:<owner>        stream    the events of all jobs of an owner, once they were followed: entry
                                                "<number>-0", fields "event", "operation" and "private"; the last 2,000
                                                or so, a day after the latest
    warpdesk:events:number:<owner>    hash      "number" of the last event in that stream; a day after it was followed
    warpdesk:progress:<id>            stream    what a task reported: entry "<step>-0", fields "at" and "values"; as
                                                long as the record
    warpdesk:jobs:<owner>             zset      the ids of an owner's jobs, all scores 0: in time order, being UUIDv7
    warpdesk:live:<owner>             set       the ids of an owner's queued and running jobs
    warpdesk:tasks:<owner>            set       the ids of an owner's live tasks
    warpdesk:uses:<owner>:<array>     set       the ids of live jobs and dead letters that read an array
    warpdesk:idempotency:<owner>:<key>  string  fingerprint of the request and job id; a day
    warpdesk:same:<owner>:<digest>    string    the live job that computes for identical ones
    warpdesk:followers:<id>           set       the jobs that a job computes for beside itself
    warpdesk:shared:<result>          set       the jobs that share a result; as long as the record
    warpdesk:forbidden:<owner>:<array>  string  the array is about to be deleted, and no job may be enqueued with it;
                                                a minute
    warpdesk:closed:<id>              string    the API canceled or erased the job: no worker gets its inputs; 8 days
    warpdesk:erased:<id>              string    what the caller of an erasure has to delete in the store; a minute

    warpdesk:waiting                  zset      every queued id, by the time of its submission
    warpdesk:delayed                  zset      queued ids in no list because of a backoff, by its end
    warpdesk:deadlines                zset      queued ids with a deadline, by the deadline
    warpdesk:leases                   zset      running ids, by the time at which their workers' claims end
    warpdesk:dead                     zset      ids of dead letters, by the time they were given up; a week
    warpdesk:ring:<lane>              zset      owners with ids in that lane, by the turn at which they were served last
    warpdesk:ring:shards:<lane>       zset      running jobs of that lane with shards for other workers, by the time at
                                                which one was given away last
    warpdesk:ring:led                 zset      jobs in shards, by the time at which their leads began with their latest
                                                shards
    warpdesk:served                   hash      lane -> time of the last claim from it; "turn" -> number of turns so far
    warpdesk:bell:<kind>              list      one token while there may be something of that kind to claim

    warpdesk:workers                  hash      worker -> identity of its process
    warpdesk:worker:<name>            string    the worker's report, as JSON; as long as the report is believed
    warpdesk:slot:<number>            string    the worker that has this number; 20 s after the last renewal
    warpdesk:claims                   hash      worker -> its latest claim: the same claim again has the same answer
    warpdesk:idle                     zset      workers that wait to be handed a job, by the time at which they began
    warpdesk:wishes                   hash      worker -> the claim with which it waits
    warpdesk:handed:<worker>          list      the answer to such a claim, once; a minute

    warpdesk:counts                   hash      the counts of all time (`workers.queue.counts`)
    warpdesk:counts:fresh             hash      counts by transitions that have not been moved to the others yet
    warpdesk:counts:<hour>            hash      the counts of a Unix hour; 8 days
    warpdesk:tally:<process>          string    number of the last addition by a process; 8 days

    warpdesk:events                   channel   each event of each job, as JSON; with the last one, unless it is large,
                                                a line break and the record
    warpdesk:probe                    string    a write that shows whether Redis takes writes; 10 s

RQ's own keys show the service to `rq info` and to exporters. Their names come from RQ's classes.

    rq:queue:warpdesk-<lane>-<owner>  list      the ids that wait: the queue itself
    rq:wip:warpdesk-<lane>-<owner>    zset      the ids that run
    rq:job:<id>                       hash      RQ's record of a live job
"""

from rq import Queue, Worker
from rq.command import PUBSUB_CHANNEL_TEMPLATE
from rq.job import Job
from rq.registry import StartedJobRegistry
from rq.suspension import WORKERS_SUSPENDED
from rq.worker_registration import REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY

DAY_SECONDS = 24 * 3600

JOB = "warpdesk:job:"
EVENTS_OF = "warpdesk:events:"
# Below the events of jobs, which accounts of Redis from before may read and write.
FEED = "warpdesk:events:of:"
FEED_EVENTS = 2000
FEED_SECONDS = DAY_SECONDS
FOLLOWED = "warpdesk:events:number:"
PROGRESS_OF = "warpdesk:progress:"
JOBS_OF = "warpdesk:jobs:"
LIVE = "warpdesk:live:"
TASKS_OF = "warpdesk:tasks:"
USES = "warpdesk:uses:"
IDEMPOTENCY = "warpdesk:idempotency:"
IDEMPOTENCY_SECONDS = DAY_SECONDS
SAME = "warpdesk:same:"
FOLLOWERS = "warpdesk:followers:"
SHARED = "warpdesk:shared:"
FORBIDDEN = "warpdesk:forbidden:"
FORBIDDEN_SECONDS = 60
CLOSED = "warpdesk:closed:"
# Longer than a result may be kept (`app.kit.schemas.WEEK`), and its record for a day more.
CLOSED_SECONDS = 8 * DAY_SECONDS
ERASED = "warpdesk:erased:"
ERASED_SECONDS = 60
# A record outlives its result by a day, so that a late question gets "the result has expired" and not "no such job".
# Redis must hold the records of every job of that time.
TOMBSTONE_SECONDS = DAY_SECONDS

WAITING = "warpdesk:waiting"
DELAYED = "warpdesk:delayed"
PAUSED_TASKS = "warpdesk:paused"
DEADLINES = "warpdesk:deadlines"
LEASES = "warpdesk:leases"
DEAD = "warpdesk:dead"
DEAD_SECONDS = 7 * DAY_SECONDS
RING = "warpdesk:ring:"
SERVED = "warpdesk:served"
BELL = "warpdesk:bell:"

WORKERS = "warpdesk:workers"
WORKER = "warpdesk:worker:"
SLOT = "warpdesk:slot:"
CLAIMS = "warpdesk:claims"
IDLE = "warpdesk:idle"
WISHES = "warpdesk:wishes"
HANDED = "warpdesk:handed:"
HANDED_SECONDS = 60

COUNTS = "warpdesk:counts"
COUNTS_FRESH = "warpdesk:counts:fresh"
COUNTS_OF_HOUR = "warpdesk:counts:"
TALLY = "warpdesk:tally:"
COUNTS_SECONDS = 8 * DAY_SECONDS  # of an hour's counts, and of what tells a repeated addition from a new one

EVENTS = "warpdesk:events"
PROBE = "warpdesk:probe"
PROBE_SECONDS = 10

QUEUE = "warpdesk"  # the queue at which RQ shows workers, and the prefix of the queues' names
RQ_QUEUE = f"{Queue.redis_queue_namespace_prefix}{QUEUE}-"
RQ_STARTED = StartedJobRegistry.key_template.format(f"{QUEUE}-")
RQ_QUEUES = Queue.redis_queues_keys
RQ_JOB = Job.key_for("")
RQ_WORKER = Worker.redis_worker_namespace_prefix
RQ_WORKERS = REDIS_WORKER_KEYS
RQ_WORKERS_OF_QUEUE = WORKERS_BY_QUEUE_KEY % QUEUE
RQ_SUSPENDED = WORKERS_SUSPENDED
RQ_COMMANDS = PUBSUB_CHANNEL_TEMPLATE  # channel: commands to one worker


def job_key(job_id: str) -> str:
    return f"{JOB}{job_id}"


def events_key(job_id: str) -> str:
    return f"{EVENTS_OF}{job_id}"


def progress_key(job_id: str) -> str:
    return f"{PROGRESS_OF}{job_id}"


def owner_key(owner: str) -> str:
    return f"{JOBS_OF}{owner}"


def uses_key(owner: str, array_id: str) -> str:
    return f"{USES}{owner}:{array_id}"


def worker_key(name: str) -> str:
    return f"{WORKER}{name}"


def handed_key(worker: str) -> str:
    return f"{HANDED}{worker}"


def counts_key(hour: int) -> str:
    return f"{COUNTS_OF_HOUR}{hour}"
