"""Whatever is sent, nothing of the service fails: requests made up from the document, and broken ones from seeds.

FUZZ_REQUESTS=50000 runs the long form; FUZZ_SEED chooses other requests. `-rP` shows what was answered.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from tests.conftest import Service, processes_of, serve, wait_until_ready
from tests.end_to_end.mutations import Created, Drawn, request
from tests.end_to_end.test_http_schema import ROUTES
from warpdesk_server.app.access.keys import create_key

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "1500"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
OF_THE_DOCUMENT = 0.1  # of them
WARM = 0.2  # of them, after which memory may no longer grow by much
GROWTH = 100 << 20  # bytes: what the allocator holds for the largest bodies at once, and all metrics
SENDERS = 8
PATIENCE = 60.0  # seconds for an answer; none is that slow, but the machine may be

EXPECTED = {"busy", "queue-full", "queue-memory", "no-gpu-worker", "deadline-unreachable"}
PARTS = ("warpdesk_server.service.api", "warpdesk_server.workers.parent.main", "redis-server")


@dataclass
class Answers:
    """What came back."""

    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    cut: int = 0  # requests whose frame was broken, and whose connection was closed without an answer

    def take(self, status: int, head: str, body: str, sent: str) -> None:
        self.statuses[status] += 1
        refused = status == 503 and "retry-after:" in head.lower() and any(f'"{code}"' in body for code in EXPECTED)
        unready = status == 503 and '"status":"unavailable"' in body  # /health and /readyz while no worker is ready
        if status >= 500 and not refused and not unready:
            self.failures.append(f"{status} {body[:500]} to {sent[:1000]}")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, list[str]]]:
    """A whole service with small limits, so that those are met, and a caller's and a worker's key."""
    home = tmp_path_factory.mktemp("fuzz")
    keys = [create_key(home, "caller", ["admin"]), create_key(home, "worker", ["worker"])]
    limits = {"MAX_BODY": "300000", "MAX_CSV": "300000", "MAX_ARRAY": "1000000", "MAX_JOB_BYTES": "2000000"}
    limits |= {"MAX_WAIT": "1", "JOB_TIMEOUT": "2", "EVENT_COMMENT_SECONDS": "0.5"}
    environment = {f"WARPDESK_{name}": value for name, value in limits.items()}
    with serve(home, ready=False, **environment) as service:
        wait_until_ready(service, path="/livez")
        yield service, keys


@pytest.mark.timeout(120 + REQUESTS // 10)
def test_nothing_that_is_sent_makes_the_service_fail(tokens: tuple[Service, list[str]]) -> None:
    service, keys = tokens
    before, started = _parts(service), time.monotonic()
    answers = Answers()
    documented = int(REQUESTS * OF_THE_DOCUMENT)
    warm = int(REQUESTS * WARM)

    _documented(service, keys[0], documented, answers)
    asyncio.run(_broken(service, keys, SEED, warm, answers))
    api = next(pid for part, pid in before.items() if part.startswith(PARTS[0]))
    held = _memory(api)
    asyncio.run(_broken(service, keys, SEED + 1, REQUESTS - documented - warm, answers))
    grown = _memory(api) - held

    print(  # noqa: T201 - for `-rP`
        f"{answers.statuses.total()} answers, {answers.cut} broken requests cut off, "
        f"{time.monotonic() - started:.0f} s; statuses {dict(sorted(answers.statuses.items()))}; "
        f"the API's memory {held >> 20} MiB, then {grown / (1 << 20):+.1f} MiB"
    )
    assert answers.failures == []
    assert answers.statuses.total() + answers.cut >= REQUESTS * 0.9  # a route without parameters has few requests
    assert before.items() <= _parts(service).items(), "a process ended"  # one for long jobs may have been started
    assert grown < GROWTH
    wait_until_ready(service)


def _parts(service: Service) -> dict[str, int]:
    running = processes_of(service.home).items()
    return {f"{part} {pid}": pid for part in PARTS for pid, command in running if part in command}


def _memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def _documented(service: Service, token: str, count: int, answers: Answers) -> None:
    """Requests that fit the document, and such that do not."""
    document = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    each = max(1, count // (2 * len(ROUTES)))
    for route in ROUTES:
        method, path = route.split()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @seed(SEED)
            @settings(
                max_examples=each, deadline=None, suppress_health_check=list(HealthCheck), database=None,
                phases=[Phase.generate],
            )  # fmt: skip
            @given(case=document[path][method].as_strategy(generation_mode=mode))
            def send(case: schemathesis.Case) -> None:
                response = case.call(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)
                head = "".join(f"{name}: {value}\n" for name, value in response.headers.items())
                answers.take(response.status_code, head, response.text, case.as_curl_command())

            try:
                send()
            except Unsatisfiable:  # a route without parameters cannot be asked wrongly
                assert mode is GenerationMode.NEGATIVE


async def _broken(service: Service, tokens: list[str], chosen: int, count: int, answers: Answers) -> None:
    """Several at once, so that what one leaves behind meets another."""
    created = Created()

    async def sender(number: int) -> None:
        chance = Random(f"{chosen} {number}")
        for _ in range(count // SENDERS):
            await _send(service, request(chance, created, tokens), created, answers)

    async with asyncio.TaskGroup() as tasks:
        for number in range(SENDERS):
            tasks.create_task(sender(number))


async def _send(service: Service, drawn: Drawn, created: Created, answers: Answers) -> None:
    address = urlsplit(service.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(drawn.sent)
            if not drawn.honest:
                writer.write_eof()  # or both sides would wait for what never comes
            head, body = await _answer(reader, head_only=drawn.head_only)
    except TimeoutError:
        answers.failures.append(f"no answer in {PATIENCE:.0f} s to {drawn.sent[:1000]!r}")
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        if drawn.honest:
            answers.failures.append(f"{error!r} instead of an answer to {drawn.sent[:1000]!r}")
        answers.cut += 1
    else:
        created.learn(body)
        answers.take(int(head.split()[1]), head, body.decode("utf-8", "replace"), repr(drawn.sent))
    finally:
        writer.transport.abort()  # close() would wait for what was not sent, and outlive the loop


async def _answer(reader: asyncio.StreamReader, *, head_only: bool) -> tuple[str, bytes]:
    """The first answer that is not `100 Continue`; of one without a length only what came at once."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    if head.startswith("HTTP/1.1 100 "):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    headers = dict(line.lower().partition(": ")[::2] for line in head.split("\r\n")[1:] if line)
    length = headers.get("content-length")
    if head_only or head.startswith("HTTP/1.1 204 "):
        return head, b""
    return head, await (reader.read(1000) if length is None else reader.readexactly(int(length)))
