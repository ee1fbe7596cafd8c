"""Rounds over HTTP: real clients, a driver that may die at any step, and the erasure of secrets and vectors."""

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.access.test_auth import bearer
from tests.app.conftest import Live, connected, live
from tests.claims import finish, take
from tests.conftest import emptied, redis_of_its_own
from tests.phases import end_phase
from tests.waiting import wait_until
from warpdesk import secagg
from warpdesk.exchange import WarpdeskError
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.jobs import submission
from warpdesk_server.app.kit import limits
from warpdesk_server.app.rounds import driver
from warpdesk_server.app.settings import Settings
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.secure_aggregation import cpu
from warpdesk_server.privacy import database
from warpdesk_server.privacy.database import DatabaseUnavailable
from warpdesk_server.privacy.rounds import state, unmasking
from warpdesk_server.privacy.rounds.errors import AlreadySent
from warpdesk_server.privacy.rounds.records import Member
from warpdesk_server.privacy.rounds.state import Rounds
from warpdesk_server.service.processes import module, spawn
from warpdesk_server.workers.child import codec
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.protocol import Failed, Provenance, Succeeded
from warpdesk_server.workers.store.rows import Row, Rows
from warpdesk_server.workers.store.spool import SpoolStore

PATH = "/v1/secagg/rounds"
OPERATION = OPERATIONS["secure_aggregation"]
DIMENSION = 300
REQUEST: dict[str, Any] = {
    "clients": 4,
    "min_clients": 3,
    "dimension": DIMENSION,
    "quantisation": {"clip": "8", "scale": "65536"},
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("home")
    with redis_of_its_own() as url, live(home, url, OPERATIONS, max_live_rounds=1000, max_result_numbers=1000) as api:
        yield api


@pytest.fixture
def api(running: Live) -> Live:
    emptied(running.redis_url)
    return running


@dataclass
class Played:
    """A round and its clients in this process."""

    api: Live
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = self.api.http.post(PATH, json={**REQUEST, **self.changes})
        assert made.status_code == 201, made.text
        self.id: str = made.json()["id"]
        self.tokens: list[str] = made.json()["join_tokens"]
        self.members = [secagg.join(self.api.url, token, patience=5) for token in self.tokens]
        random = np.random.default_rng(7)
        self.vectors = [random.normal(size=DIMENSION) for _ in self.members]
        self.inputs: list[str] = []  # ids of the job's arrays, after `work`
        self.engine = database.connect(self.api.settings.ledger)
        self.rounds = Rounds(self.engine)

    @property
    def url(self) -> str:
        return f"{PATH}/{self.id}"

    @property
    def state(self) -> Any:
        return self.api.http.get(self.url).json()

    def as_client(self, client: int) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.tokens[client]}"}
        return httpx.Client(base_url=f"{self.api.url}{self.url}", headers=headers, timeout=30)

    def each(self, step: Callable[[int], Any], clients: Sequence[int] | None = None) -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(step, range(len(self.members)) if clients is None else clients))

    def until_masked(self) -> None:
        self.each(lambda c: self.members[c].publish_keys())
        self.each(lambda c: self.members[c].send_shares())
        assert self.state["phase"] == "masked"

    def until_aggregating(self, stay: Sequence[int] = (0, 1, 2, 3)) -> None:
        self.until_masked()
        self.each(lambda c: self.members[c].send_vector(self.vectors[c]), stay)
        if len(stay) < len(self.members):
            self.end_masked()
        self.each(lambda c: self.members[c].unmask(), stay)
        assert self.state["phase"] in ("aggregating", "done"), self.state

    def sum_of(self, stay: Sequence[int]) -> "np.ndarray[Any, Any]":
        whole: np.ndarray[Any, Any] = sum(np.rint(np.clip(self.vectors[c], -8, 8) * 65536) for c in stay) / 65536  # type: ignore[assignment]
        return whole

    def end_masked(self, left: float = 0.0) -> None:
        """End the phase of masked vectors now, or in so many seconds."""
        end_phase(self.engine, self.id, "masked", left)

    def until(self, phase: str) -> None:
        try:
            wait_until(lambda: self.state["phase"] == phase)
        except AssertionError:
            log = self.api.settings.home / "api.log"  # of an API that is a process
            raise AssertionError(f"{self.state}\n{log.read_text() if log.exists() else ''}") from None

    def work(self) -> str:
        """Run the job of the sum as a worker does, once it is queued."""
        wait_until(lambda: self.state["job"])
        job = take(self.api.queue, self.state["job"])
        self.inputs = list(job.request.inputs.values())
        params, arrays = codec.decode(OPERATION, job.request, self.api.store, {})
        directory = self.api.store.new_result(job.request.id, job.attempt)
        codec.encode(OPERATION, job.request, cpu.secure_aggregation(params, **arrays), directory, self.api.store,  # type: ignore[arg-type]
                     self.api.queue.time())  # fmt: skip
        how = Provenance(backend="cpu", device="this process", attempt=job.attempt)
        assert finish(self.api.queue, job, Succeeded(result=directory.name, provenance=how)) == "done"
        return job.request.id

    def erased(self) -> bool:
        """Whether there is nothing left to erase: no row, no array of the job, no share."""
        kept = [self.api.store.find("local", array) for array in self.inputs]
        return self.id not in self.rounds.due() and not rows_of(self) and not any(kept)

    def jobs(self) -> list[str]:
        """The round's jobs in Redis."""
        records = self.api.queue.jobs("local", 200)[0]
        return [record.request.id for record in records if record.request.params.get("round_id") == self.id]

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.engine.dispose()


Play = Callable[..., Played]


@pytest.fixture
def play() -> Iterator[Play]:
    """A function that makes a round. Its clients are closed at the end of the test."""
    made = list[Played]()

    def start(api: Live, changes: dict[str, Any] | None = None) -> Played:
        made.append(Played(api, changes or {}))
        return made[-1]

    yield start
    for played in made:
        played.close()


def problem(answer: httpx.Response) -> tuple[int, str, str]:
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"], answer.json()["detail"]


@pytest.mark.parametrize("bits", [32, 64])
def test_a_round_with_a_drop_out_gives_the_exact_sum_and_leaves_nothing_else(api: Live, play: Play, bits: int) -> None:
    played = play(api, {"modulus_bits": bits})
    stay = (0, 2, 3)
    played.until_aggregating(stay)
    job = played.work()
    played.until("done")

    answer = api.http.get(f"{played.url}/result").json()

    np.testing.assert_array_equal(answer["sum"], played.sum_of(stay))
    assert (answer["survivors"], answer["dropped"], answer["job"]) == ([0, 2, 3], [1], job)
    assert answer["overflow_proof"] == {"max_abs_sum": 4 * 8 * 65536, "limit": 2 ** (bits - 1) - 1}
    assert "learned which 4 clients took part" in answer["statement"]
    assert "secure aggregation is not differential privacy" in answer["statement"]
    wait_until(played.erased)
    assert api.http.get(f"{played.url}/survivors").json() == {"survivors": [0, 2, 3], "dropped": [1]}


def test_what_is_secret_is_in_no_file_and_not_in_redis_while_the_round_runs_and_after_it(api: Live, play: Play) -> None:
    played = play(api)
    secrets = [token.encode() for token in played.tokens]
    for member in played.members:
        state = member._state
        secrets += [bytes.fromhex(key) for key in (state.mask_private, state.share_private, state.self_seed)]
    played.until_aggregating()
    shares = []
    with played.engine.connect() as connection:
        for table in ("reveals", "shares"):
            column = "share" if table == "reveals" else "ciphertext"
            rows = connection.exec_driver_sql(f"SELECT {column} FROM {table} WHERE round = '{played.id}'")  # noqa: S608
            shares += [bytes(value) for (value,) in rows if value]
    assert len(shares) == 16 + 12

    def secrets_in_redis() -> int:
        """The number of secrets that are in Redis, as bytes or in hexadecimal."""
        with connect(api.redis_url) as redis:
            dumped = b"".join(redis.dump(key) or b"" for key in redis.keys("*"))
        return sum(secret in dumped or secret.hex().encode() in dumped for secret in [*secrets, *shares])

    wait_until(lambda: played.state["job"])
    assert secrets_in_redis() == 0
    played.work()
    wait_until(played.erased)
    assert secrets_in_redis() == 0

    def holders() -> list[str]:
        """The files that hold a secret. A file may vanish meanwhile, as counts of stored bytes do."""
        found = list[str]()
        for file in api.settings.home.rglob("*"):
            with suppress(FileNotFoundError, IsADirectoryError):
                content = file.read_bytes()
                if count := sum(secret in content for secret in [*secrets, *shares]):
                    found.append(f"{file} ({len(content)} bytes) holds {count}")
        return found

    # SQLite's log is emptied after the rows are deleted, and once more if somebody was reading then.
    wait_until(lambda: not holders(), lambda: "; ".join(holders()))


def test_only_who_made_the_round_gets_its_sum(redis_url: str, play: Play, tmp_path: Path) -> None:
    home = tmp_path / "home"
    creator, other, reader = (
        create_key(home, name, scopes)
        for name, scopes in (("a", ["submit", "read"]), ("b", ["admin"]), ("c", ["read"]))
    )
    with live(home, redis_url, OPERATIONS) as api:
        api.http.headers["Authorization"] = f"Bearer {creator}"
        played = play(api)

        def refusal(token: str, path: str = "") -> tuple[int, str]:
            return problem(api.http.get(f"{played.url}{path}", headers={"Authorization": f"Bearer {token}"}))[:2]

        assert refusal(other) == refusal(other, "/result") == refusal(reader, "/roster") == (404, "unknown-round")
        assert refusal(played.tokens[0], "/result") == (401, "unauthorized")
        assert refusal(creator, "/result") == (409, "not-yet")
        assert refusal(creator, "/shares") == (401, "unknown-member")
        assert refusal(played.tokens[0][:-1] + "!") == (401, "unknown-member")
        foreign = play(api)
        assert refusal(foreign.tokens[0]) == (401, "unknown-member")
        refused = api.http.post(PATH, json=REQUEST, headers={"Authorization": f"Bearer {reader}"})
        assert problem(refused)[:2] == (403, "missing-scope")
        joined = {"Authorization": f"Bearer {played.tokens[1]}"}
        assert api.http.get(played.url, headers=joined).json()["phase"] == "keys"


@pytest.mark.parametrize(
    ("change", "pointer", "sentence"),
    [
        ({"clients": 2}, "/clients", "clients should be at least 3, got 2"),
        ({"min_clients": 5}, "/min_clients", "min_clients 5 is outside 3 to 4 clients"),
        ({"threshold": 2}, "/threshold", "threshold 2 of 4 clients must lie between 3, more than half, and 3"),
        ({"quantisation": {"clip": "1e9", "scale": "1"}}, "/quantisation", "above 2147483647, the largest mod 2**32"),
        ({"modulus_bits": 16}, "/modulus_bits", "should be 32 or 64"),
        ({"dimension": 0}, "/dimension", "dimension should be at least 1, got 0"),
        ({"deadlines": {"keys_s": 0}}, "/deadlines/keys_s", "keys_s should be above 0, got 0"),
        ({"noise": 1}, "/noise", "there is no field 'noise' here"),
    ],
)
def test_a_round_that_cannot_be_is_refused_where_it_is_wrong(
    api: Live, change: dict[str, Any], pointer: str, sentence: str
) -> None:
    answer = api.http.post(PATH, json={**REQUEST, **change})

    status, code, detail = problem(answer)
    assert (status, code, [error["pointer"] for error in answer.json()["errors"]]) == (
        422,
        "invalid-request",
        [pointer],
    )
    assert sentence in detail


def test_rounds_have_limits_with_their_numbers(serve_api: Callable[..., Any]) -> None:
    with serve_api(max_live_rounds=2, max_round_bytes=40_000, max_job_bytes=200_000) as api:
        large = api.http.post(PATH, json={**REQUEST, "dimension": 100_000})
        assert problem(large)[:2] == (422, "job-too-large")
        assert "4 vectors of 100000 words and their sum are 4000000 bytes; a job may have 200000" in problem(large)[2]
        assert api.http.post(PATH, json=REQUEST).status_code == 201
        assert api.http.post(PATH, json=REQUEST).status_code == 201
        assert problem(api.http.post(PATH, json=REQUEST))[:2] == (429, "too-many-rounds")
    with serve_api(max_round_bytes=10_000, max_round_bytes_per_key=10_000) as api:
        full = api.http.post(PATH, json=REQUEST)
        assert problem(full)[:2] == (429, "storage-quota")
        assert "rounds of one key may hold 10000 together, and the key's have 9600" in problem(full)[2]
    with serve_api(max_round_bytes=10_000, max_round_bytes_per_key=20_000) as api:
        full = api.http.post(PATH, json=REQUEST)
        assert problem(full)[:2] == (503, "storage-full")
        assert "are 4800 bytes; live rounds of all keys may hold 10000 together" in problem(full)[2]
        assert int(full.headers["Retry-After"]) >= 1


def test_a_key_that_took_its_share_of_rounds_leaves_room_for_another_key(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    tokens = [create_key(tmp_path / "home", name, ["submit", "read"]) for name in ("greedy", "other")]
    greedy, other = ({"Authorization": f"Bearer {token}"} for token in tokens)

    def usage(key: dict[str, str]) -> tuple[int, int]:
        answer = api.http.get("/v1/arrays", headers=key).json()
        return answer["round_bytes"], answer["max_round_bytes"]

    with serve_api(max_round_bytes=20_000) as api:  # a round takes 4,800 bytes, a key has a quarter of this
        wait_until(lambda: usage(greedy) == (0, 5000))
        assert api.http.post(PATH, json=REQUEST, headers=greedy).status_code == 201
        for _ in range(8):
            assert problem(api.http.post(PATH, json=REQUEST, headers=greedy))[:2] == (429, "storage-quota")
        wait_until(lambda: (usage(greedy), usage(other)) == ((4800, 5000), (0, 5000)))
        assert api.http.post(PATH, json=REQUEST, headers=other).status_code == 201
        wait_until(lambda: usage(other) == (4800, 5000))
        api.app.state.services.metrics._ledger.ask(20.0)
        admin = {"Authorization": f"Bearer {create_key(tmp_path / 'home', 'admin', ['admin'])}"}
        wait_until(lambda: "warpdesk_round_bytes 9600.0" in api.http.get("/metrics", headers=admin).text)


@pytest.mark.parametrize("phase", ["keys_s", "shares_s"])
def test_a_round_holds_no_room_for_longer_than_an_hour_before_its_vectors(api: Live, phase: str) -> None:
    answer = api.http.post(PATH, json={**REQUEST, "deadlines": {phase: 604_800}})
    assert problem(answer) == (422, "invalid-request", f"{phase} should be at most 3600, got 604800")


def rows_of(played: Played) -> bytes:
    file = played.api.settings.store_directory / "rows" / f"{played.id}.npy"
    return file.read_bytes() if file.exists() else b""


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4 * DIMENSION - 1, 4 * DIMENSION + 1, 4 * DIMENSION + 4, 8_000_000])
def test_a_masked_vector_of_another_length_is_erased_and_refused(
    api: Live, play: Play, length: int, chunked: bool
) -> None:
    played = play(api)
    played.until_masked()

    def pieces() -> Iterator[bytes]:
        for start in range(0, length, 700):
            yield b"\xff" * min(700, length - start)

    with played.as_client(2) as http:
        content = pieces() if chunked else b"\xff" * length
        answer = http.put("masked", content=content, headers={"Content-Type": "application/octet-stream"})

    assert problem(answer)[:2] == (422, "wrong-length")
    assert f"A masked vector of this round has {4 * DIMENSION} bytes, got " in problem(answer)[2]
    assert b"\xff" not in rows_of(played)
    assert played.state["counts"]["masked"] == 0
    played.members[2].send_vector(played.vectors[2])
    assert played.state["counts"]["masked"] == 1


def test_a_member_of_a_large_round_may_name_every_other_and_what_is_wrong_is_told_by_its_number(
    api: Live, play: Play
) -> None:
    played = play(api)
    many = {f"k{number}": 0 for number in range(39_990)}
    with played.as_client(0) as http:
        refused = [http.post(path, json=many) for path in ("shares", "unmask", "keys")]

    assert problem(refused[0]) == (422, "invalid-request", "The body has 39992 errors")
    assert problem(refused[1]) == (422, "invalid-request", "The body has 39990 errors")
    assert problem(refused[2]) == (422, "invalid-request", "The body has more than 1000 keys, which is the limit")


def test_a_masked_vector_whose_sender_goes_away_is_erased_and_may_be_sent_again(api: Live, play: Play) -> None:
    played = play(api, {"dimension": 2_000_000})
    played.until_masked()
    head = (
        f"PUT {played.url}/masked HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
        f"Authorization: Bearer {played.tokens[1]}\r\nContent-Length: 8000000\r\n\r\n"
    )
    with connected(api) as connection:
        connection.sendall(head.encode() + b"\xff" * 7_000_000)
        wait_until(lambda: b"\xff" in rows_of(played))
        with played.as_client(1) as http:  # the same client sends a second vector meanwhile
            content = {"content": bytes(8_000_000), "headers": {"Content-Type": "application/octet-stream"}}
            assert problem(http.put("masked", **content))[:2] == (503, "busy")
    wait_until(lambda: b"\xff" not in rows_of(played))
    with played.as_client(1) as http:
        wait_until(lambda: http.put("masked", **content).status_code == 204)  # type: ignore[arg-type]
    assert played.state["counts"]["masked"] == 1


def test_a_masked_vector_is_never_held_whole(api: Live, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[int]()
    write = Row.write

    def noted(row: Row, pieces: Sequence[bytes]) -> None:
        written.append(sum(map(len, pieces)))
        write(row, pieces)

    monkeypatch.setattr(Row, "write", noted)
    played = play(api, {"dimension": 5_000_000})
    played.until_masked()
    with played.as_client(0) as http:
        answer = http.put("masked", content=bytes(20_000_000), headers={"Content-Type": "application/octet-stream"})
    assert answer.status_code == 204
    assert sum(written) == 20_000_000
    assert max(written) < limits.VECTOR_WRITTEN_AT_ONCE + (1 << 20)


def test_pieces_of_masked_vectors_that_wait_count_for_the_rounds_owner(
    api: Live, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwritten = api.app.state.services.unwritten
    played = play(api, {"dimension": 2_000_000})
    played.until_masked()
    with ExitStack() as stack:
        for client in range(3):
            connection = stack.enter_context(connected(api))
            head = (
                f"PUT {played.url}/masked HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
                f"Authorization: Bearer {played.tokens[client]}\r\nContent-Length: 8000000\r\n\r\n"
            )
            connection.sendall(head.encode() + bytes(1_500_000))
        wait_until(lambda: unwritten.held("local") == 3 * 1_500_000)
    wait_until(lambda: unwritten.held() == 0)

    written = list[int]()
    write = Row.write

    def noted(row: Row, pieces: Sequence[bytes]) -> None:
        written.append(len(pieces))
        write(row, pieces)

    monkeypatch.setattr(Row, "write", noted)
    with unwritten.take("local", unwritten.each), played.as_client(3) as http:
        answer = http.put("masked", content=bytes(8_000_000), headers={"Content-Type": "application/octet-stream"})
    assert answer.status_code == 204
    assert max(written) == 1  # each piece was written by itself


def test_a_vector_that_is_still_on_its_way_when_the_phase_ends_is_discarded_for_good(api: Live, play: Play) -> None:
    played = play(api, {"dimension": 1_000_000})
    played.vectors = [np.resize(vector, 1_000_000) for vector in played.vectors]
    played.until_masked()
    for client in (0, 1, 3):
        played.members[client].send_vector(played.vectors[client])
    head = (
        f"PUT {played.url}/masked HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
        f"Authorization: Bearer {played.tokens[2]}\r\nContent-Length: 4000000\r\n\r\n"
    )
    with connected(api) as connection:
        connection.sendall(head.encode() + b"\xee" * 3_900_000)
        wait_until(lambda: b"\xee" * 64 in rows_of(played))
        played.end_masked()
        played.until("unmask")
        connection.sendall(b"\xee" * 100_000)
        assert b"phase-over" in connection.recv(4000)
    wait_until(lambda: b"\xee" * 64 not in rows_of(played))
    with played.as_client(2) as http:
        content = {"content": bytes(4_000_000), "headers": {"Content-Type": "application/octet-stream"}}
        assert problem(http.put("masked", **content))[:2] == (409, "phase-over")  # type: ignore[arg-type]
        assert problem(http.post("unmask", json={}))[:2] == (409, "phase-over")
    played.each(lambda c: played.members[c].unmask(), (0, 1, 3))
    played.work()
    played.until("done")
    assert api.http.get(f"{played.url}/result").json()["dropped"] == [2]


_STEPS: dict[str, Callable[[pytest.MonkeyPatch, Live, Callable[[Any], Any]], None]] = {
    "the rows are moved": lambda patch, _, twice: patch.setattr(Rows, "close", twice(Rows.close)),
    "seeds are recovered": lambda patch, _, twice: patch.setattr(unmasking, "self_seeds", twice(unmasking.self_seeds)),
    "the vectors are published": lambda patch, api, twice: patch.setattr(
        api.app.state.services.store, "adopt", twice(api.app.state.services.store.adopt)
    ),
    "the inputs are known": lambda patch, api, twice: patch.setattr(
        api.app.state.services.rounds, "submitted", twice(api.app.state.services.rounds.submitted)
    ),
    "the job is queued": lambda patch, _, twice: patch.setattr(
        submission, "submit_for", twice(submission.submit_for)
    ),
    "the round has ended": lambda patch, api, twice: patch.setattr(
        api.app.state.services.rounds, "end", twice(api.app.state.services.rounds.end)
    ),
    "arrays are deleted": lambda patch, _, twice: patch.setattr(driver, "_delete", twice(driver._delete)),
    "rows are deleted": lambda patch, _, twice: patch.setattr(Rows, "delete", twice(Rows.delete)),
    "shares are erased": lambda patch, api, twice: patch.setattr(
        api.app.state.services.rounds, "erase", twice(api.app.state.services.rounds.erase)
    ),
}  # fmt: skip


@pytest.mark.parametrize("step", _STEPS)
def test_whatever_step_the_driver_fails_at_the_round_goes_on_with_one_job(
    api: Live, play: Play, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    failed = list[str]()

    def twice(call: Any) -> Any:
        """Make a call that fails before its work the first time, and after it the second time."""

        def fails(*given: Any, **named: Any) -> Any:
            failed.append(step)
            if len(failed) == 1:
                raise RuntimeError("the driver dies here")
            done = call(*given, **named)
            if len(failed) > 2:
                return done
            if not hasattr(done, "__await__"):
                raise RuntimeError("the driver dies here")

            async def awaited() -> None:
                await done
                raise RuntimeError("the driver dies here")

            return awaited()

        return fails

    played = play(api)
    _STEPS[step](monkeypatch, api, twice)
    played.until_aggregating()
    played.work()
    wait_until(played.erased)

    assert len(failed) >= 2
    np.testing.assert_array_equal(api.http.get(f"{played.url}/result").json()["sum"], played.sum_of(range(4)))
    assert len(played.jobs()) == 1


def test_a_step_that_is_canceled_by_something_else_does_not_end_the_driver(
    api: Live, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, canceled = driver._step, list[str]()

    async def once(desk: Any, round_id: str) -> None:
        if not canceled:
            canceled.append(round_id)
            raise asyncio.CancelledError
        await step(desk, round_id)

    monkeypatch.setattr(driver, "_step", once)
    played = play(api)
    played.until_aggregating()
    played.work()
    played.until("done")
    assert canceled == [played.id]
    wait_until(played.erased)


class Processes:
    """Processes of the API that share one socket, one home and one Redis."""

    def __init__(self, home: Path, redis_url: str) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.settings = Settings(home=home, redis_url=redis_url)
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, count: int) -> None:
        command, needed = module("warpdesk_server.service.api", "--fd", str(self.listening.fileno()))
        settings = {"WARPDESK_HOME": str(self.settings.home), "WARPDESK_REDIS_URL": self.settings.redis_url, **needed}
        log, passed = self.settings.home / "api.log", (self.listening.fileno(),)
        self.running += [spawn(command, env={**os.environ, **settings}, log=log, pass_fds=passed) for _ in range(count)]

    def kill(self) -> None:
        """End all of them with SIGKILL."""
        while self.running:
            process = self.running.pop()
            process.kill()
            process.wait()

    @contextmanager
    def live(self) -> Iterator[Live]:
        url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        settings = self.settings
        with (
            httpx.Client(base_url=url, timeout=120, transport=httpx.HTTPTransport(retries=5)) as http,  # as they start
            connect(settings.redis_url) as redis,
        ):
            store = SpoolStore(settings.store_directory)
            yield Live(http, url, None, JobQueue(redis, store.mac_of), store, settings, settings.redis_url)


@pytest.fixture
def processes(redis_url: str, tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path, redis_url)
    yield made
    made.kill()
    made.listening.close()


@pytest.mark.timeout(400)
def test_two_processes_that_both_drive_rounds_make_one_job_of_each(processes: Processes, play: Play) -> None:
    processes.start(2)
    with processes.live() as api:
        for _ in range(3):
            played = play(api)
            played.until_aggregating()
            played.work()
            played.until("done")
            answer = api.http.get(f"{played.url}/result").json()
            np.testing.assert_array_equal(answer["sum"], played.sum_of(range(4)))
            assert len(played.jobs()) == 1
            wait_until(played.erased)


@pytest.mark.timeout(400)
def test_a_service_that_is_killed_in_each_phase_goes_on_with_the_round(processes: Processes, play: Play) -> None:
    def again(client: int, step: Callable[[secagg.Member], Any]) -> None:
        """Repeat a client's step until the service accepts it: the service may be killed meanwhile."""
        for _ in range(20):
            try:
                step(played.members[client])
            except (httpx.TransportError, WarpdeskError) as error:
                if isinstance(error, WarpdeskError) and error.code != "bad-request":
                    raise
                time.sleep(0.1)
            else:
                return
        raise AssertionError("the service did not come back")

    processes.start(1)
    with processes.live() as api:
        played = play(api)
        for step in (
            lambda member: member.publish_keys(),
            lambda member: member.send_shares(),
            lambda member: member.send_vector(played.vectors[member.client]),
            lambda member: member.unmask(),
        ):
            played.each(lambda client, step=step: again(client, step), (0, 1))
            processes.kill()
            with ThreadPoolExecutor(2) as threads:  # the other two call while no process runs
                others = [threads.submit(again, client, step) for client in (2, 3)]
                processes.start(1)
                for other in others:
                    other.result()
        processes.kill()  # the job of the sum may have been queued or not
        processes.start(1)
        played.work()
        played.until("done")
        answer = api.http.get(f"{played.url}/result").json()
        np.testing.assert_array_equal(answer["sum"], played.sum_of(range(4)))
        assert len(played.jobs()) == 1
        wait_until(played.erased)


def test_a_job_that_redis_lost_is_made_again(api: Live, play: Play) -> None:
    played = play(api)
    played.until_aggregating()
    wait_until(lambda: played.state["job"])
    lost = played.state["job"]
    with connect(api.redis_url) as redis:
        redis.flushall()
    wait_until(lambda: played.state["job"] not in (None, lost))
    played.work()
    played.until("done")
    np.testing.assert_array_equal(api.http.get(f"{played.url}/result").json()["sum"], played.sum_of(range(4)))
    wait_until(played.erased)


def test_a_round_whose_job_fails_is_aborted_with_the_reason(api: Live, play: Play) -> None:
    played = play(api)
    played.until_aggregating()
    wait_until(lambda: played.state["job"])
    job = take(api.queue, played.state["job"])
    finish(api.queue, job, Failed(code="operation-error", message="a coordinate is out of range"))
    played.until("aborted")

    why = f"the job {job.request.id} of the sum is failed: a coordinate is out of range"
    assert played.state["why"] == why
    assert problem(api.http.get(f"{played.url}/result")) == (409, "round-aborted", f"The round was aborted: {why}")
    wait_until(played.erased)


def test_a_round_of_which_too_few_are_left_is_aborted_and_erased(api: Live, play: Play) -> None:
    played = play(api)
    played.until_masked()
    played.each(lambda c: played.members[c].send_vector(played.vectors[c]), (0, 1))
    played.end_masked()
    played.until("aborted")

    assert played.state["why"] == "2 masked vectors came in time, and 3 are the least"
    with pytest.raises(WarpdeskError, match="2 masked vectors came in time") as refused:
        played.members[0].unmask()
    assert refused.value.code == "round-aborted"
    wait_until(played.erased)


def test_a_round_can_be_canceled_by_who_made_it_and_holds_nothing_afterwards(api: Live, play: Play) -> None:
    played = play(api)
    played.until_masked()
    played.members[0].send_vector(played.vectors[0])
    assert api.http.delete(f"{PATH}/round_{'0' * 32}").status_code == 404
    assert api.http.delete(played.url).status_code == 204
    assert (played.state["phase"], played.state["why"]) == ("aborted", "it was canceled")
    assert api.http.delete(played.url).status_code == 204
    with pytest.raises(WarpdeskError, match="it was canceled"):
        played.members[1].send_vector(played.vectors[1])
    wait_until(played.erased)


def test_a_key_lists_its_own_rounds_newest_first_in_pages_that_join(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    mine, others = (create_key(tmp_path / "home", name, ["submit", "read"]) for name in ("a", "b"))
    with serve_api(max_live_rounds=10) as api:
        made = [api.http.post(PATH, json=REQUEST, headers=bearer(mine)).json()["id"] for _ in range(3)]
        api.http.post(PATH, json=REQUEST, headers=bearer(others))
        api.http.delete(f"{PATH}/{made[1]}", headers=bearer(mine))

        found, url = [], f"{PATH}?limit=2"
        while url:
            page = api.http.get(url, headers=bearer(mine)).json()
            found += [(one["id"], one["phase"]) for one in page["rounds"]]
            url = page["next"]

        assert found == [(made[2], "keys"), (made[1], "aborted"), (made[0], "keys")]
        unknown = api.http.get(f"{PATH}?cursor=round_{'0' * 32}", headers=bearer(mine))
        assert problem(unknown)[:2] == (404, "unknown-round")
        assert "wdj_" not in api.http.get(PATH, headers=bearer(mine)).text, "join tokens are told once"


def test_a_round_is_not_asked_for_by_what_is_no_id(api: Live) -> None:
    for odd in ("round_%00", "round_1", "x" * 300):
        answer = api.http.get(f"{PATH}/{odd}/survivors", headers={"Authorization": "Bearer wdj_x"})
        assert answer.status_code in (401, 404), answer.text


def test_a_sender_that_stands_still_holds_its_row_no_longer_than_the_phase(api: Live, play: Play) -> None:
    played = play(api)
    played.until_masked()
    played.each(lambda c: played.members[c].send_vector(played.vectors[c]), (0, 1, 3))
    played.end_masked(left=2.0)
    head = (
        f"PUT {played.url}/masked HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
        f"Authorization: Bearer {played.tokens[2]}\r\nContent-Length: {4 * DIMENSION}\r\n\r\n"
    )
    with connected(api) as connection:
        connection.sendall(head.encode() + b"\xee" * 8)
        assert b"phase-over" in connection.recv(4000)


@pytest.mark.parametrize("error", [DatabaseUnavailable("lost"), AlreadySent("lost"), RuntimeError("lost")])
def test_a_vector_that_was_counted_is_not_erased_whatever_became_of_the_answer(
    api: Live, play: Play, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    played = play(api)
    played.until_masked()
    send = Rounds.send_masked

    def lost(rounds: Rounds, member: Member) -> None:
        send(rounds, member)
        raise error

    monkeypatch.setattr(Rounds, "send_masked", lost)
    with played.as_client(2) as http:
        content = b"\xee" * (4 * DIMENSION)
        answer = http.put("masked", content=content, headers={"Content-Type": "application/octet-stream"})
    assert answer.status_code >= 400
    assert content in rows_of(played)
    assert played.state["counts"]["masked"] == 1


def test_a_vector_that_outlives_its_round_leaves_no_file(
    api: Live, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play(api)
    played.until_masked()
    played.each(lambda c: played.members[c].send_vector(played.vectors[c]), (0, 1))
    begin = Rows.begin

    def late(rows: Rows) -> None:
        """Begin to store a vector after its round ended and was erased: both happen once the vector was admitted."""
        played.end_masked()
        played.until("aborted")
        wait_until(played.erased)
        begin(rows)

    monkeypatch.setattr(Rows, "begin", late)
    with played.as_client(2) as http:
        content = bytes(4 * DIMENSION)
        answer = http.put("masked", content=content, headers={"Content-Type": "application/octet-stream"})

    assert problem(answer)[:2] == (409, "round-aborted")
    assert rows_of(played) == b""


def test_no_word_of_a_clients_secrets_is_in_an_answer_or_in_the_log(
    api: Live, play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    played = play(api)
    played.until_masked()
    played.each(lambda c: played.members[c].send_vector(played.vectors[c]), (0, 1, 2))
    played.end_masked()
    played.until("unmask")
    held = played.members[0]._state.held
    answers = []
    with played.as_client(0) as http:
        seeds = {str(owner): held[owner].self_seed for owner in (0, 1, 2)}
        keys = {str(owner): held[owner].mask_key for owner in (0, 1, 2, 3)}
        answers.append(http.post("unmask", json={"self_seed": seeds, "mask_key": keys}))
        forged = {**seeds, "1": seeds["2"]}
        answers.append(http.post("unmask", json={"self_seed": forged, "mask_key": {"3": keys["3"]}}))
        answers.append(http.post("unmask", json={"self_seed": seeds["1"], "mask_key": 3}))
        answers.append(http.post("unmask", json={"self_seed": {"1": seeds["1"] + "x"}, "mask_key": {}}))
    assert [problem(answer)[1] for answer in answers] == [
        "double-reveal", "forged-share", "invalid-request", "invalid-request",
    ]  # fmt: skip
    output = "".join(answer.text for answer in answers) + caplog.text + json.dumps(played.state)
    for share in (*seeds.values(), *keys.values(), *(token.split("_", 3)[3] for token in played.tokens)):
        assert share not in output


def test_a_round_without_a_database_says_so_and_goes_on_when_it_is_back(
    api: Live, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play(api)

    def away(_: Any) -> Any:
        raise database.DatabaseUnavailable("it is away")

    with monkeypatch.context() as patched:
        patched.setattr(state, "reading", away)
        patched.setattr(state, "writing", away)
        assert problem(api.http.get(played.url))[:2] == (503, "ledger-unavailable")
        time.sleep(2 * driver.EVERY)  # so that the driver meets the failure too
    played.until_aggregating()
    played.work()
    played.until("done")
