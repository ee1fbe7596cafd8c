"""The lead of a job in shards: how long it waits for others, and what it says of all shards together."""

import pytest

from warpdesk_server.workers.parent.lead import Lead, of_all
from warpdesk_server.workers.queue.protocol import Provenance


def part(backend: str, seconds: float, **more: object) -> Provenance:
    values = {"backend": backend, "device": f"a {backend}", "attempt": 1, "compute_seconds": seconds, **more}
    return Provenance.model_validate(values)


def test_a_job_in_shards_has_the_backend_of_most_and_the_sums_of_all() -> None:
    shards = [
        part("gpu", 1.0, energy_joules=3.0, cost_dollars=0.1, device_share=0.5),
        part("cpu", 4.0, fallback_reason="no room", cost_dollars=0.2),
        part("gpu", 1.0, energy_joules=4.0, cost_dollars=0.3, kernel_seconds=0.5),
    ]
    whole = of_all(part("cpu", 2.0, seed=7), shards)
    assert (whole.backend, whole.device, whole.fallback_reason, whole.seed) == ("gpu", "a gpu", None, 7)
    assert whole.shards == {"gpu": 2, "cpu": 1}
    assert (whole.compute_seconds, whole.kernel_seconds, whole.energy_joules) == (8.0, 0.5, 7.0)
    assert whole.cost_dollars == pytest.approx(0.6)
    assert whole.copy_seconds is None, "nobody told any"
    assert whole.device_share == pytest.approx(7.5 / 8.0)


def test_a_helper_has_twice_the_time_of_the_leads_slowest_shard_and_a_second_at_least() -> None:
    lead = Lead()
    before = lead.patience
    lead.computed(0.1)
    assert (before, lead.patience) == (30.0, 1.0)
    lead.computed(3.0)
    lead.computed(0.2)
    assert lead.patience == 6.0


def test_a_shard_is_computed_again_once() -> None:
    lead = Lead()
    assert lead.again is None
    assert [lead.may_compute_again(number) for number in (2, 3, 2)] == [True, True, False]
