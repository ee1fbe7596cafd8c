"""The provenance that an owner sees of a launch shared with other owners: as if it had the owner's jobs alone."""

from typing import Any

import pytest

from warpdesk.models import Provenance as ClientProvenance
from warpdesk.models import State
from warpdesk_server.app.access.keys import LOCAL
from warpdesk_server.app.jobs.records import provenance
from warpdesk_server.workers.queue.protocol import NO_GPU_WAS_FREE, SOONER_ON_CPU, JobRequest, Provenance, Together
from warpdesk_server.workers.queue.records import JobRecord

TOGETHER = Together(key="alike", items=8, bytes=1000)
SECONDS = ("copy_seconds", "kernel_seconds", "compute_seconds")


def client_provenance(size: int, own: int | None, together: Together | None = TOGETHER, **how: Any) -> ClientProvenance:
    """The provenance that the owner sees of a job in a launch of `size` jobs, of which `own` are the owner's."""
    owner = how.pop("owner", "key_a")
    request = JobRequest(id="job_1", owner=owner, operation="rsi", params={}, inputs={}, size=100, timeout=1,
                         result_ttl=1, together=together)  # fmt: skip
    computed = Provenance(backend="gpu", device="H200", attempt=1, batch_size=size, batch_own=own, **how)
    found = provenance(JobRecord(request, State.SUCCEEDED, 1, 1.0, provenance=computed))
    assert found is not None
    return found


@pytest.mark.parametrize(("size", "own", "count"), [(6, 6, 6), (6, 2, 2), (6, None, 1), (1, None, 1)])
def test_jobs_of_others_are_not_counted(size: int, own: int | None, count: int) -> None:
    assert client_provenance(size, own).batch_size == count
    assert "batch_own" not in client_provenance(size, own).model_dump()


@pytest.mark.parametrize(
    ("own", "fields", "reason"),
    [
        (3, {}, "drained"),
        (8, {}, "full"),
        (3, {"bytes": 400}, "drained"),
        (3, {"bytes": 399}, "bytes"),
        (3, {"wait": 0.5}, "waited"),
    ],
)
@pytest.mark.parametrize("others", [0, 5])
@pytest.mark.parametrize("of_launch", ["full", "bytes", "waited", "drained"])
def test_why_a_batch_grew_no_further_is_told_by_the_owners_jobs_alone(
    own: int, fields: dict[str, Any], reason: str, others: int, of_launch: str
) -> None:
    together = TOGETHER.model_copy(update=fields)

    assert client_provenance(own + others, own, together, batch_reason=of_launch).batch_reason == reason
    assert client_provenance(1, 1, None).batch_reason is None


def test_seconds_are_a_share_and_tell_no_number_of_jobs_beside_the_cost() -> None:
    """From times in nanoseconds and a public price nobody can compute that the launch had seven jobs."""
    price, took = 3.6, 0.001234567
    how: dict[str, Any] = dict.fromkeys(SECONDS, took)

    alone, shared = (client_provenance(7, own, **how, cost_dollars=took / 7 * price / 3600) for own in (7, 2))

    assert [getattr(alone, name) for name in SECONDS] == [pytest.approx(took, abs=1e-7)] * 3
    assert [getattr(shared, name) for name in SECONDS] == [pytest.approx(took * 2 / 7, abs=1e-7)] * 3
    for view in (alone, shared):
        assert view.compute_seconds == round(view.compute_seconds or 0.0, 7)
        of_job = (view.compute_seconds or 0.0) / view.batch_size
        assert view.cost_dollars == pytest.approx(of_job * price / 3600, rel=1e-12)


def test_what_was_predicted_for_a_launch_is_told_without_numbers_where_others_might_be_in_it() -> None:
    reason = "predicted 0.21 ms on the CPU, 0.1 ms on the GPU"
    measured = "to measure it again: predicted 0.21 ms on the CPU, 0.1 ms on the GPU"
    short = "out of memory: needed 800 bytes, limit 1000 bytes, free 500 bytes"

    for own in (1, 3):
        assert client_provenance(3, own, backend_reason=reason).backend_reason == "predicted to be the quicker"
        assert client_provenance(3, own, backend_reason=measured).backend_reason == "to measure it again"
        assert client_provenance(3, own, fallback_reason=short).fallback_reason == "out of memory"
    assert (
        client_provenance(3, 3, owner=LOCAL, backend_reason=reason).backend_reason == reason
    )  # there is no other owner
    assert client_provenance(1, 1, None, backend_reason=reason, fallback_reason=short).backend_reason == reason
    assert client_provenance(1, 1, None, fallback_reason=short).fallback_reason == short
    assert client_provenance(3, 1, fallback_reason="no NVIDIA driver").fallback_reason == "no NVIDIA driver"


def test_why_the_cpu_ended_sooner_is_told_without_how_long_other_jobs_would_have_kept_the_gpu() -> None:
    reason = f"{SOONER_ON_CPU}: predicted 2 s, and 1 ms on the GPU after 3.2 s of other jobs"

    for together in (TOGETHER, None):
        assert client_provenance(1, 1, together, backend_reason=reason).backend_reason == SOONER_ON_CPU
        assert client_provenance(1, 1, together, owner=LOCAL, backend_reason=reason).backend_reason == reason
    assert client_provenance(1, 1, backend_reason=NO_GPU_WAS_FREE).backend_reason == "no GPU was free"


def test_what_a_job_took_tells_no_key_that_another_job_shared_the_device() -> None:
    shared = {"cost_dollars": 0.1, "energy_joules": 20.0, "device_share": 0.5}

    views = [client_provenance(1, 1, None, owner=owner, **shared) for owner in ("key_a", LOCAL)]

    assert [(view.cost_dollars, view.energy_joules) for view in views] == [(0.2, 40.0), (0.1, 20.0)]
    assert "device_share" not in views[0].model_dump()
