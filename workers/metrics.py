"""The declaration of every metric: name, kind, labels and their first values, help and buckets, each once.

Three things are made from it: the fields that Lua and Python count under (`workers.queue.counts`), the exposition at
`/metrics` (`app.metrics`), and the documentation (the reference page, and the dashboard of all metrics). Names lack the
prefix `warpdesk_`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from warpdesk_server.workers.queue.protocol import FAILURES, PRIORITIES

Kind = Literal["counter", "gauge", "times", "sizes"]

_SECOND = "added up each second, and lost where the process is killed before"
_WORKER = f"as its worker knows it, {_SECOND}"

# Placeholders in `zeros` for label values that the API knows: each operation, each refusal of an unwell service.
OPERATION, REFUSAL = "<operation>", "<refusal>"
_QUEUES = tuple((queue,) for queue in PRIORITIES)

# Few bounds: each is a series for each operation or route. Quantiles with a known error are in /performance-metrics.
_WAITS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300)


@dataclass(frozen=True)
class Metric:
    """The declaration of one metric.

    `times` counts durations by bucket and `sizes` counts whole numbers; with `bounds` they are shown as a histogram,
    without as a summary. `source` says who writes it: `api`, `transition` (Lua) and `worker` count in Redis, and the
    other sources are read when `/metrics` is asked for. An `hourly` one is also kept for each hour, for
    `/performance-metrics` and its trend. `zeros` are label values that are exported as 0 from the start, so that a rate
    sees the first increment; a counted metric without labels always is.
    """

    name: str
    kind: Kind
    source: Literal["api", "transition", "worker", "process", "store", "queue", "redis", "report", "gpu", "ledger"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    hourly: bool = False
    zeros: tuple[tuple[str, ...], ...] = ()

    @property
    def counted(self) -> bool:
        """Whether the metric is declared as counted in Redis, where all processes add to it."""
        return self.source in ("api", "transition", "worker")

    def checked(self, values: Sequence[str]) -> tuple[str, ...]:
        """The label values of the declared metric as a tuple; raises ValueError if there are too many or too few."""
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has {len(self.labels)} labels {self.labels}, got {len(values)}: {values}")
        return tuple(values)


_EVERY = (
    # Requests
    Metric("http_requests_total", "counter", "api",
           f"Requests answered, {_SECOND}. An event stream is counted when it ends", ("route", "method", "code")),
    Metric("http_request_duration_seconds", "times", "api",
           "Time from a request's head to the end of its answer, including a wait that the caller asked for; "
           "without private jobs", ("route", "method"), (0.025, 0.1, 0.5, 2.5)),
    Metric("http_failures_total", "counter", "api", f"Answers under /v1 with a status of 500 or more, {_SECOND}",
           ("code",), zeros=(("500",), ("503",))),
    Metric("http_requests_in_progress", "gauge", "process", "Requests that this process is answering"),
    Metric("refusals_total", "counter", "api",
           "Requests refused, by the problem's code; without the framework's own 404 and 405", ("code",),
           zeros=((REFUSAL,),)),
    Metric("event_loop_lag_seconds", "gauge", "process",
           "Time since this process' event loop last ran, at most about a second in health. While it hangs only the "
           "metrics port answers"),
    Metric("build_info", "gauge", "process", "Always 1; the version that runs here", ("version", "python")),
    Metric("collector_up", "gauge", "process",
           "1 if the source answered the last collection, 0 if its values are stale", ("collector",)),
    # Queue
    Metric("queue_up", "gauge", "process", "1 while this process reaches the queue"),
    Metric("queue_jobs", "gauge", "queue",
           "Live jobs: waiting for a worker, running, or waiting out a backoff; without jobs that wait for the result "
           "of an identical one", ("queue", "state")),
    Metric("queue_oldest_job_age_seconds", "gauge", "queue",
           "Time since the submission of the oldest job that waits for a worker; 0 where none waits", ("queue",)),
    Metric("paused_tasks", "gauge", "queue", "Tasks that are paused, until their owners resume them"),
    Metric("dead_letters", "gauge", "queue", "Jobs that were given up and wait for an operator, for a week"),
    # Jobs
    Metric("jobs_replayed_total", "counter", "api", "Submissions answered with the job that their Idempotency-Key had"),
    Metric("jobs_enqueued_total", "counter", "transition",
           "Jobs taken into the queue; a dead letter that is run again is counted again", ("queue", "operation"),
           zeros=(("batch", OPERATION),)),
    Metric("jobs_finished_total", "counter", "transition",
           "Jobs that ended, each once whatever crashed; `reason` is the error code of those that failed",
           ("queue", "operation", "state", "reason"), hourly=True),
    Metric("job_failures_total", "counter", "transition", "Jobs that failed, by their error code",
           ("queue", "reason"), zeros=tuple((queue, reason) for queue in PRIORITIES for reason in FAILURES)),
    Metric("jobs_computed_total", "counter", "worker",
           f"Answers that were computed, by backend, {_WORKER}; without jobs answered with another one's result",
           ("operation", "backend"), hourly=True),
    Metric("jobs_coalesced_total", "counter", "transition",
           "Jobs answered with the result of an identical job already in flight", ("operation",), hourly=True,
           zeros=((OPERATION,),)),
    Metric("job_retries_total", "counter", "transition",
           "Attempts beyond a job's first, for whatever reason: most are of workers that were replaced",
           ("operation",), hourly=True, zeros=((OPERATION,),)),
    Metric("job_strikes_total", "counter", "transition",
           "Attempts that ended their worker's process while they ran alone", ("operation",), zeros=((OPERATION,),)),
    Metric("jobs_dead_total", "counter", "transition", "Jobs that were given up and kept as dead letters",
           ("operation",), zeros=((OPERATION,),)),
    Metric("workers_lost_total", "counter", "worker",
           "Workers that vanished (killed, cut off, or their machine failed), as another worker noticed; without "
           "workers that were stopped"),
    Metric("leases_expired_total", "counter", "transition",
           "Attempts taken from a worker that was gone or did not renew its claim"),
    Metric("job_wait_seconds", "times", "worker",
           f"Time from submission to the start of the attempt that answered, {_WORKER}; without private jobs",
           ("queue",), _WAITS, hourly=True, zeros=_QUEUES),
    Metric("job_seconds", "times", "worker",
           f"Time from submission to the end, of jobs that succeeded, {_WORKER}; without private jobs",
           ("queue",), _WAITS, hourly=True, zeros=_QUEUES),
    Metric("job_run_seconds", "times", "worker",
           f"Time in which a job was computed, {_WORKER}. Each job of a launch has the launch's whole time; without "
           "private jobs", ("operation", "backend"), (0.01, 0.1, 1), hourly=True),
    Metric("batch_size", "sizes", "worker", f"Jobs in a launch, {_WORKER}", ("operation",), (1, 8), hourly=True),
    Metric("batches_total", "counter", "worker",
           f"Launches, by the reason why no more jobs were in them, {_WORKER}", ("operation", "trigger"), hourly=True),
    Metric("fallbacks_total", "counter", "worker",
           f"Answers that the CPU computed although a GPU was wanted, by the reason, {_WORKER}",
           ("operation", "reason"), hourly=True),
    Metric("kernel_duration_seconds", "times", "worker",
           "Duration of a launch, once for all its jobs: on a GPU its kernels by CUDA events, on a CPU the whole call; "
           "by the launch's elementary steps (below 10^6, 10^8, 10^10, and more); without private jobs",
           ("operation", "backend", "size_class"), hourly=True),
    Metric("kernel_bytes_total", "counter", "worker",
           "Input and output bytes of launches with a duration: the least they had to move, not what they moved",
           ("operation", "backend"), hourly=True),
    Metric("kernel_work_total", "counter", "worker",
           "Elementary steps of launches with a duration, as the operation states them; these are not FLOPs",
           ("operation", "backend"), hourly=True),
    Metric("kernel_compilations_total", "counter", "worker",
           "Kernels requested, by outcome: cached (hit), compiled (miss), or failed (error)", ("state",),
           zeros=(("hit",), ("miss",), ("error",))),
    Metric("transfer_bytes_total", "counter", "worker",
           "Bytes that jobs copied between host and GPU; without private jobs", ("direction",),
           zeros=(("h2d",), ("d2h",))),
    Metric("transfer_seconds_total", "counter", "worker",
           "Time in which those bytes were copied; copies side by side add up; without private jobs", ("direction",),
           zeros=(("h2d",), ("d2h",))),
    Metric("job_energy_joules_total", "counter", "worker",
           "Energy of the GPU while it computed jobs, including what else ran on it; where the GPU tells; without "
           "private jobs", ("operation", "backend"), hourly=True),
    Metric("cost_dollars_total", "counter", "worker",
           "Seconds of launches at the price of their device, without idle time and private jobs",
           ("operation", "backend"), hourly=True),
    # Storage
    Metric("store_free_bytes", "gauge", "store", "Free bytes on the disk of arrays and results"),
    Metric("store_kept_free_bytes", "gauge", "store", "Free bytes that no array and no result may take"),
    Metric("store_used_bytes", "gauge", "store", "Bytes that arrays and results take or have reserved"),
    Metric("store_max_bytes", "gauge", "store", "Limit of the bytes that arrays and results may take"),
    # Redis
    Metric("redis_memory_used_bytes", "gauge", "redis", "Memory that Redis uses"),
    Metric("redis_memory_max_bytes", "gauge", "redis", "Redis' memory limit; 0 where it has none"),
    Metric("redis_keeps_jobs", "gauge", "redis",
           "1 while Redis evicts nothing and has an append-only file; otherwise jobs can be lost"),
    Metric("redis_durable", "gauge", "redis", "1 while each write is on Redis' disk before it is confirmed"),
    Metric("redis_evicted_keys_total", "counter", "redis", "Keys that Redis evicted: jobs may be among them"),
    # Workers
    Metric("workers", "gauge", "report", "Live workers, without companions for long jobs", ("backend", "state")),
    Metric("worker_last_heartbeat_timestamp_seconds", "gauge", "report", "Time of the worker's last report", ("slot",)),
    Metric("worker_restarts", "gauge", "report", "Child processes that the worker replaced since it started",
           ("slot",)),
    Metric("fleet_dollars_per_hour", "gauge", "report",
           "Price of the live workers per hour, of those whose device has a price"),
    # GPUs: judgement
    Metric("gpu_state", "gauge", "gpu", "1 for the GPU's state, the worst judgement of its workers", ("uuid", "state")),
    Metric("gpu_canary_last_success_timestamp_seconds", "gauge", "gpu",
           "Time at which the GPU last answered a known question right", ("uuid",)),
    Metric("gpu_breaker_open", "gauge", "gpu", "1 for each kernel or example that is kept off the GPU",
           ("uuid", "what")),
    Metric("gpu_breakers_open", "gauge", "gpu", "Number of kernels and examples that are kept off the GPU", ("uuid",)),
    Metric("gpu_faults", "gauge", "gpu", "Faults since the GPU's workers started", ("uuid", "kind")),
    Metric("gpu_driver_hung", "gauge", "gpu", "1 while a call of the driver's library does not return", ("uuid",)),
    Metric("gpu_reading_age_seconds", "gauge", "gpu", "Age of the last reading of the driver", ("uuid",)),
    # GPUs: memory
    Metric("gpu_pool_used_bytes", "gauge", "gpu", "Device memory of the workers' pools that is in arrays", ("uuid",)),
    Metric("gpu_pool_held_bytes", "gauge", "gpu",
           "Device memory that the workers' pools took from the driver: used, or kept for reuse", ("uuid",)),
    Metric("gpu_pool_limit_bytes", "gauge", "gpu", "Limit of the device memory that the workers may hold", ("uuid",)),
    Metric("gpu_pool_stuck_bytes", "gauge", "gpu",
           "Device memory that the pools hold, do not use, and did not give back when asked", ("uuid",)),
    Metric("gpu_memory_used_bytes", "gauge", "gpu", "Device memory in use", ("uuid",)),
    Metric("gpu_memory_free_bytes", "gauge", "gpu", "Free device memory", ("uuid",)),
    Metric("gpu_memory_total_bytes", "gauge", "gpu", "Device memory in all", ("uuid",)),
    Metric("gpu_memory_reserved_bytes", "gauge", "gpu", "Device memory that the driver keeps", ("uuid",)),
    Metric("gpu_process_memory_bytes", "gauge", "gpu",
           "Device memory of the workers' processes (own), and of all others (other)", ("uuid", "kind")),
    Metric("gpu_processes", "gauge", "gpu", "Processes that compute on the GPU", ("uuid",)),
    # GPUs: activity between two readings
    Metric("gpu_sm_activity_ratio", "gauge", "gpu",
           "Share of the multiprocessors that had work, between two readings", ("uuid",)),
    Metric("gpu_sm_occupancy_ratio", "gauge", "gpu",
           "Warps on the multiprocessors, as a share of those they can hold, between two readings", ("uuid",)),
    Metric("gpu_tensor_activity_ratio", "gauge", "gpu",
           "Share of time in which the tensor cores worked, between two readings", ("uuid",)),
    Metric("gpu_dram_activity_ratio", "gauge", "gpu",
           "Memory bandwidth used, as a share of its peak, between two readings", ("uuid",)),
    # GPUs: driver
    Metric("gpu_info", "gauge", "gpu", "Always 1; describes the GPU. `mig` is the GPU that it is a slice of",
           ("uuid", "name", "driver", "cuda", "mig", "architecture")),
    Metric("gpu_utilization_ratio", "gauge", "gpu",
           "Share of time in which any kernel ran; it does not say how much of the GPU worked", ("uuid",)),
    Metric("gpu_temperature_celsius", "gauge", "gpu", "Temperature", ("uuid",)),
    Metric("gpu_temperature_slowdown_celsius", "gauge", "gpu", "Temperature at which the GPU slows down", ("uuid",)),
    Metric("gpu_power_watts", "gauge", "gpu", "Power draw", ("uuid",)),
    Metric("gpu_power_limit_watts", "gauge", "gpu", "Power limit", ("uuid",)),
    Metric("gpu_energy_joules_total", "counter", "gpu", "Energy used since the driver was loaded", ("uuid",)),
    Metric("gpu_clock_hertz", "gauge", "gpu", "Clock rate of the multiprocessors (sm) or the memory",
           ("uuid", "domain")),
    Metric("gpu_clock_event_active", "gauge", "gpu", "1 while this reason keeps the clocks from being higher",
           ("uuid", "reason")),
    Metric("gpu_ecc_errors_total", "counter", "gpu", "Memory errors since the driver was loaded", ("uuid", "kind")),
    Metric("gpu_remapped_rows", "gauge", "gpu",
           "Memory rows remapped after errors, by kind; 1 while a remap is pending, and once one failed",
           ("uuid", "kind")),
    Metric("gpu_peak_memory_bandwidth_bytes_per_second", "gauge", "gpu",
           "Peak memory bandwidth, from the bus width and the highest clock", ("uuid",)),
    Metric("gpu_xid_last_timestamp_seconds", "gauge", "gpu", "Time at which the driver last logged this Xid",
           ("uuid", "xid")),
    # Privacy
    Metric("privacy_charges_total", "counter", "api",
           "Releases charged to the open budget of a dataset (granted), and refused because it did not hold them",
           ("dataset", "state")),
    Metric("privacy_epsilon_budget", "gauge", "ledger",
           "Privacy loss that the open budget of a dataset holds in all, of budgets kept in epsilon", ("dataset",)),
    Metric("privacy_epsilon_spent", "gauge", "ledger",
           "Privacy loss charged to that budget; a refund makes it smaller", ("dataset",)),
    Metric("privacy_delta_budget", "gauge", "ledger",
           "Probability of more loss that the open budget of a dataset holds in all, of budgets kept in delta",
           ("dataset",)),
    Metric("privacy_delta_spent", "gauge", "ledger",
           "Probability of more loss charged to that budget; a refund makes it smaller", ("dataset",)),
    Metric("privacy_rho_budget", "gauge", "ledger",
           "Zero-concentrated loss that the open budget of a dataset holds in all, of budgets kept in rho",
           ("dataset",)),
    Metric("privacy_rho_spent", "gauge", "ledger",
           "Zero-concentrated loss charged to that budget; a refund makes it smaller", ("dataset",)),
    Metric("privacy_datasets_left_out", "gauge", "ledger",
           "Datasets with an open budget that are in no metric, because there are more than 100"),
    Metric("rounds", "gauge", "ledger", "Rounds of secure aggregation whose data is kept, by phase", ("phase",)),
    Metric("round_bytes", "gauge", "ledger", "Bytes of the masked vectors of live rounds, including those to come"),
)  # fmt: skip

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _EVERY}
COUNTED: Mapping[str, Metric] = {name: metric for name, metric in METRICS.items() if metric.counted}
