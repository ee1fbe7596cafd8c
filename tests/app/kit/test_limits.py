"""Rate limits of submissions: bursts, the rate after them, and that other keys are not affected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.app.access.test_auth import SCALE, bearer
from tests.app.arrays.test_uploads import NPY, npy
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.limits import Limits, Shares, network
from warpdesk_server.kernels.catalogue import OPERATIONS


def test_a_burst_is_taken_and_then_the_rate() -> None:
    now = 100.0
    limits = Limits(2.0, 3, "So many", lambda: now)

    for _ in range(3):
        limits.take("a")
    with pytest.raises(Refusal, match="So many: 2 a second, 3 at once"):
        limits.take("a")
    limits.take("b")

    now += 0.5
    limits.take("a")
    with pytest.raises(Refusal):
        limits.take("a")


def test_rest_fills_no_more_than_a_burst() -> None:
    now = 0.0
    limits = Limits(1000.0, 2, "So many", lambda: now)
    limits.take("a")
    now += 3600.0

    for _ in range(2):
        limits.take("a")
    with pytest.raises(Refusal):
        limits.take("a")


@pytest.mark.parametrize(("rate", "wait"), [(0.1, "10"), (0.4, "3"), (50.0, "1")])
def test_a_refusal_says_when_one_more_is_due(rate: float, wait: str) -> None:
    limits = Limits(rate, 1, "So many", lambda: 0.0)
    limits.take("a")

    with pytest.raises(Refusal) as refused:
        limits.take("a")

    assert refused.value.status == 429
    assert refused.value.headers["Retry-After"] == wait


def test_a_key_over_its_rate_is_told_to_wait_and_others_are_served(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    busy, calm = (create_key(tmp_path / "home", name, ["submit", "read"]) for name in ("busy", "calm"))
    with serve_api(submissions_per_second=0.01, submission_burst=2) as api:
        array = npy(np.arange(3.0))
        taken = [
            api.http.post("/v1/jobs", json=SCALE, headers=bearer(busy)),
            api.http.put("/v1/arrays", content=array, headers={**NPY, **bearer(busy)}),
        ]
        before = api.queued()

        refused = [
            api.http.post("/v1/jobs", json=SCALE, headers=bearer(busy)),
            api.http.put("/v1/arrays", content=array, headers={**NPY, **bearer(busy)}),
        ]

        assert [answer.status_code for answer in taken] == [202, 201]
        for answer in refused:
            assert (answer.status_code, answer.json()["code"]) == (429, "rate-limited")
            assert answer.json()["retryable"]
            assert 1 <= int(answer.headers["Retry-After"]) <= 100
        assert api.queued() == before
        assert api.http.get("/v1/jobs", headers=bearer(busy)).status_code == 200
        assert api.http.post("/v1/jobs", json=SCALE, headers=bearer(calm)).status_code == 202


def test_however_many_senders_come_what_is_kept_of_them_is_bounded() -> None:
    now = 0.0
    limits = Limits(1.0, 3, "So many", lambda: now)
    for number in range(100_000):
        now += 1e-6
        limits.take(str(number))

    assert len(limits._buckets) <= 10_000
    for _ in range(2):
        limits.take("99999")
    with pytest.raises(Refusal):  # the latest bucket was kept
        limits.take("99999")
    now += 10.0
    for number in range(10_001):
        limits.take(f"later {number}")
    assert "99999" not in limits._buckets  # dropped: after ten seconds it was full again


def test_one_owner_has_its_share_and_all_together_have_the_whole() -> None:
    shares = Shares("Parses", each=2, whole=3)
    first, second = shares.take("a"), shares.take("a")

    with pytest.raises(Refusal) as too_much:
        shares.take("a")
    third = shares.take("b")
    with pytest.raises(Refusal) as used_up:
        shares.take("c")

    assert (too_much.value.code, too_much.value.status) == ("share-used-up", 429)
    assert str(too_much.value) == "Parses: one key may hold 2 at once; it holds 2 and needs 1 more"
    assert (used_up.value.code, used_up.value.status) == ("busy", 503)
    assert str(used_up.value) == "Parses: this service holds 3 at once for all; 1 more are not free now"
    assert {refused.value.headers["Retry-After"] for refused in (too_much, used_up)} == {"1"}

    for share in (first, second, third):
        share.close()
    assert shares.held() == 0


def test_a_share_that_is_left_is_free_again_whatever_happened_in_it() -> None:
    shares = Shares("Parses", each=1, whole=1)
    with pytest.raises(ZeroDivisionError), shares.take("a"):
        raise ZeroDivisionError
    with shares.take("a") as share:
        share.close()
        with shares.take("b"):
            pass
        assert shares.held() == 0


def test_a_share_grows_up_to_what_its_owner_may_hold() -> None:
    shares = Shares("Bytes", each=100, whole=1000)
    with shares.take("a", 60) as share:
        share.grow(40)
        with pytest.raises(Refusal, match="it holds 100 and needs 1 more"):
            share.grow(1)
        assert (share.amount, shares.held("a"), shares.held("b")) == (100, 100, 0)
    assert shares.held("a") == 0


@pytest.mark.parametrize(
    ("address", "sender"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("", ""),
    ],
)
def test_a_line_of_ipv6_is_one_sender(address: str, sender: str) -> None:
    assert network(address) == sender


def test_a_flood_without_a_key_is_told_to_wait_and_a_key_of_the_same_address_is_served(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    token = create_key(tmp_path / "home", "desk", ["submit", "read"])
    with serve_api(failed_logins_per_second=0.01, failed_login_burst=5) as api:
        wrong = bearer("wd_000000000000_" + "A" * 43)
        answers = [api.http.get("/v1/jobs", headers=wrong) for _ in range(8)]
        round_ = api.http.get("/v1/secagg/rounds/round_1/roster", headers=bearer("wdj_" + "0" * 32 + "_0_" + "A" * 43))

        assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 3
        for answer in (*answers[5:], round_):
            assert (answer.status_code, answer.json()["code"]) == (429, "rate-limited")
            assert 1 <= int(answer.headers["Retry-After"]) <= 100
        assert api.http.get("/v1/jobs", headers=bearer(token)).status_code == 200
        assert api.http.post("/v1/jobs", json=SCALE, headers=bearer(token)).status_code == 202


def test_a_member_of_a_round_is_served_through_a_flood_of_its_own_address(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    owner = create_key(tmp_path / "home", "desk", ["submit", "read"])
    with serve_api(operations=OPERATIONS, failed_logins_per_second=0.01, failed_login_burst=3) as api:
        body = {"clients": 4, "min_clients": 3, "dimension": 4, "quantisation": {"clip": "8", "scale": "65536"}}
        made = api.http.post("/v1/secagg/rounds", json=body, headers=bearer(owner)).json()
        mine, url = made["join_tokens"][0], f"/v1/secagg/rounds/{made['id']}"
        others = [api.http.get(url, headers=bearer(mine[:-4] + "AAAA")).status_code for _ in range(5)]

        assert others == [401] * 3 + [429] * 2
        assert [api.http.get(url, headers=bearer(mine)).status_code for _ in range(3)] == [200] * 3
        assert api.http.get(url, headers=bearer(mine[:-4] + "AAAA")).status_code == 429


def test_every_route_that_knows_its_caller_is_limited(serve_api: Callable[..., Any], tmp_path: Path) -> None:
    """Each key has one request in a long time. The next is refused on every route but those of workers."""
    home = tmp_path / "home"
    keys = {scope: create_key(home, scope, [scope]) for scope in ("admin", "worker")}
    with serve_api(requests_per_second=0.01, request_burst=1) as api:
        paths = api.http.get("/openapi.json").json()["paths"]
        routes = [
            (method, path, keys["admin"])
            for path, methods in paths.items()
            for method, description in methods.items()
            if description.get("security") != [] and "401" in description["responses"] and not _of_members(description)
        ]
        assert api.http.get("/v1/jobs", headers=bearer(keys["admin"])).status_code == 200

        answers = {
            (method, path): api.http.request(method, path.replace("{", "").replace("}", ""), headers=bearer(token))
            for method, path, token in routes
        }

        assert {place for place, answer in answers.items() if answer.status_code != 429} == set()
        assert all(answer.headers["Retry-After"] for answer in answers.values())
        assert len(answers) >= 30
        assert [api.http.get("/v1/worker", headers=bearer(keys["worker"])).status_code for _ in range(3)] == [204] * 3


def _of_members(description: dict[str, Any]) -> bool:
    """Whether the route accepts nothing but a join token."""
    return [*description.get("security", [{}])] == [{"join_token": []}]
