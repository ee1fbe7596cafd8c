"""Whole rounds of secure aggregation: the sum is that of the clients that stayed, whoever dies, restarts or lies."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.phases import end_phase
from tests.waiting import wait_until
from warpdesk import Client, secagg
from warpdesk.client import Round, Unreachable, WarpdeskError
from warpdesk.secagg import Member, Quantisation, Refused, graph
from warpdesk.secagg.masking import quantise
from warpdesk_server.privacy.database import connect
from warpdesk_server.privacy.rounds.records import Phase
from warpdesk_server.privacy.rounds.state import Rounds
from warpdesk_server.workers.settings import ledger_in

pytestmark = pytest.mark.timeout(300)

UNIT = Quantisation(clip="8", scale="65536", max_weight=1)
DIMENSION = 50


def vectors(clients: int, dimension: int = DIMENSION) -> NDArray[np.float64]:
    return np.random.default_rng(7).normal(size=(clients, dimension))


@contextmanager
def members(
    client: Client, url: str, clients: int, state: Path | None = None, **options: Any
) -> Iterator[tuple[Round, list[Member]]]:
    """A round and its clients, none of which has sent anything; the first keeps its state in a file."""
    made = client.secagg_round(**{"clients": clients, "dimension": DIMENSION, "quantisation": UNIT, **options})
    with ExitStack() as open_:
        files = [state, *[None] * (clients - 1)]
        yield (
            made,
            [
                open_.enter_context(secagg.join(url, token, file, patience=0))
                for token, file in zip(made.tokens, files, strict=True)
            ],
        )


def at_once(steps: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run them in a thread each; what they return, or the exception they end with."""

    def ending(step: Callable[[], Any]) -> Any:
        try:
            return step()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            return error

    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(ending, steps))


def end_phases(service: Any, made: Round, sent: Mapping[Phase, int]) -> None:
    """Have the time of each phase be over once so many clients have sent what belongs to it."""
    ledger = connect(ledger_in(service.home))
    for phase, clients in sent.items():
        wait_until(lambda phase=phase, clients=clients: Rounds(ledger).status(made.id).counts[phase] == clients)
        end_phase(ledger, made.id, phase)
    ledger.dispose()


@pytest.mark.parametrize("bits", [32, 64])
def test_a_round_in_which_everybody_stays_sums_all_vectors(service: Any, client: Client, bits: Any) -> None:
    quantisation = Quantisation(clip="4", scale="1000" if bits == 32 else "1e12", max_weight=9)
    rows, weights = vectors(5), [1, 2, 9, 4, 1]
    with members(client, service.url, 5, quantisation=quantisation, modulus_bits=bits, output="int") as (made, all_):
        survivors = at_once(
            [lambda m=m, r=r, w=w: m.take_part(r, w) for m, r, w in zip(all_, rows, weights, strict=True)]
        )
        result = client.secagg_result(made, timeout=60)
    assert survivors == [(0, 1, 2, 3, 4)] * 5
    assert (result.survivors, result.dropped) == ([0, 1, 2, 3, 4], [])
    expected = sum(quantise(row, quantisation, weight) for row, weight in zip(rows, weights, strict=True))
    assert result.sum.dtype == np.int64
    assert result.sum.tolist() == expected.tolist()
    assert result.overflow_proof == {"max_abs_sum": 5 * 9 * quantisation.bound, "limit": 2 ** (bits - 1) - 1}
    assert "secure aggregation is not differential privacy" in result.statement


def test_clients_that_leave_in_each_phase_cost_the_round_their_vectors_at_most(service: Any, client: Client) -> None:
    rows = vectors(9)
    leaves = {1: "keys", 3: "shares", 5: "vector", 8: "unmask"}  # before it sends that

    def play(member: Member) -> None:
        steps = {
            "keys": member.publish_keys,
            "shares": member.send_shares,
            "vector": lambda: member.send_vector(rows[member.client]),
            "unmask": member.unmask,
        }
        for name, step in steps.items():
            if leaves.get(member.client) == name:
                return
            step()

    sent: dict[Phase, int] = {"keys": 8, "shares": 7, "masked": 6, "unmask": 5}
    with members(client, service.url, 9, output="mean", threshold=5, min_clients=6) as (made, all_):
        steps = [*(lambda m=m: play(m) for m in all_), lambda: end_phases(service, made, sent)]
        assert at_once(steps) == [None] * 10
        result = client.secagg_result(made, timeout=60)
    stayed = [0, 2, 4, 6, 7, 8]
    assert (result.survivors, result.dropped) == (stayed, [5])
    expected = sum(quantise(rows[at], UNIT) for at in stayed) / 65536 / len(stayed)
    np.testing.assert_array_equal(result.sum, expected)


def test_a_round_with_too_few_left_is_aborted_and_every_client_hears_why(
    service: Any, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "state"
    with members(client, service.url, 5, file, threshold=4, min_clients=4) as (made, all_):
        for member in all_:
            member.publish_keys()
        for member in all_:
            member.send_shares()
        for member in all_[:3]:
            member.send_vector(vectors(1)[0])
        assert file.stat().st_mode & 0o777 == 0o600
        end_phases(service, made, {"masked": 3})
        for member in all_[:3]:
            with pytest.raises(WarpdeskError, match=r"3 clients are left .* threshold is 4") as caught:
                member.unmask()
            assert caught.value.code == "round-aborted"
        with pytest.raises(WarpdeskError, match="aborted"):
            client.secagg_result(made, timeout=10)
    assert not file.exists(), "a client keeps no secret of a round that is over"


def test_a_ring_of_many_clients_masks_with_neighbours_alone(service: Any, client: Client) -> None:
    n, gone = 64, (0, 17, 63)
    rows, settled = vectors(n, 300), graph.parameters(n)
    assert settled.degree < n - 1

    def play(member: Member) -> Any:
        member.publish_keys()
        member.send_shares()
        assert member._state.sent is not None
        assert len(member._state.sent.ciphertexts) == settled.degree
        return None if member.client in gone else (member.send_vector(rows[member.client]), member.unmask())[1]

    options = {
        "dimension": 300,
        "modulus_bits": 64,
        "quantisation": Quantisation(clip="8", scale="1e9"),
        "output": "int",
    }
    with members(client, service.url, n, min_clients=50, **options) as (made, all_):
        steps = [*(lambda m=m: play(m) for m in all_), lambda: end_phases(service, made, {"masked": n - len(gone)})]
        *ends, ended = at_once(steps)
        result = client.secagg_result(made, timeout=60)
    stayed = [at for at in range(n) if at not in gone]
    assert ended is None
    assert ends == [None if at in gone else tuple(stayed) for at in range(n)]
    assert result.survivors == stayed
    assert result.dropped == list(gone)
    assert result.sum.tolist() == sum(quantise(rows[at], options["quantisation"]) for at in stayed).tolist()


def test_a_client_that_is_started_again_at_every_step_goes_on_where_it_was(
    service: Any, client: Client, tmp_path: Path
) -> None:
    rows, file = vectors(3), tmp_path / "state"
    with members(client, service.url, 3, output="int") as (made, all_):

        def again() -> Member:
            """The first client, with nothing but its file."""
            return secagg.join(service.url, made.tokens[0], file)

        _again_and_again(again, "publish_keys")
        for member in all_[1:]:
            member.publish_keys()
        _again_and_again(again, "send_shares")
        for member in all_[1:]:
            member.send_shares()
        _again_and_again(again, "send_vector", rows[0])
        with again() as member, pytest.raises(Refused, match="another vector was masked"):
            member.send_vector(rows[0] + 1)
        for member in all_[1:]:
            member.send_vector(rows[member.client])
        for member in all_[1:]:
            member.unmask()
        with again() as member:
            assert member.unmask() == (0, 1, 2)
        result = client.secagg_result(made, timeout=60)
    assert not file.exists()
    assert result.sum.tolist() == sum(quantise(row, UNIT) for row in rows).tolist()


def _again_and_again(again: Callable[[], Member], step: str, *arguments: Any) -> None:
    """What is sent the second time is what was sent the first: the service takes one of them."""
    for _ in range(2):
        with again() as member:
            getattr(member, step)(*arguments)


def test_a_state_is_of_one_client_of_one_round(service: Any, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "state"
    with members(client, service.url, 3) as (made, _):
        with secagg.join(service.url, made.tokens[0], file) as member:
            member.publish_keys()
        with pytest.raises(ValueError, match="belongs to client 0 of round_"):
            secagg.join(service.url, made.tokens[1], file)
        file.write_text(json.dumps({"round": "secret"}))
        with pytest.raises(ValueError, match="is not the state of a client") as caught:
            secagg.join(service.url, made.tokens[0], file)
    assert "secret" not in str(caught.value)


class Lying(httpx.BaseTransport):
    """Between one client and the service: changes what the service answers to GETs of one step."""

    def __init__(self, step: str, change: Callable[[dict[str, Any]], None]) -> None:
        self._http = httpx.HTTPTransport()
        self._step = step
        self._change = change

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._http.handle_request(request)
        if request.method != "GET" or not request.url.path.endswith(self._step) or response.status_code != 200:
            return response
        response.read()
        document = json.loads(response.content)
        self._change(document)
        return httpx.Response(200, json=document)

    def close(self) -> None:
        self._http.close()


def _double_keys(roster: dict[str, Any]) -> None:
    roster["clients"]["1"]["share_public"] = roster["clients"]["2"]["mask_public"]


def _encode_again(roster: dict[str, Any]) -> None:
    """Another client's point as the first one's encoding has it, with the bit set that X25519 ignores."""
    key = bytearray.fromhex(roster["clients"]["2"]["share_public"])
    key[31] |= 0x80
    roster["clients"]["1"]["share_public"] = key.hex()


def _flip(step: str, *path: str) -> Callable[[dict[str, Any]], None]:
    def change(message: dict[str, Any]) -> None:
        at = message
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = format(int(at[path[-1]][0], 16) ^ 1, "x") + at[path[-1]][1:]

    return change


LIES: dict[str, tuple[str, Callable[[dict[str, Any]], None], str]] = {
    "its key is missing": (
        "roster",
        lambda message: message["clients"].pop("0"),
        "does not hold the keys that client 0",
    ),
    "its key is another": ("roster", _flip("roster", "clients", "0", "mask_public"), "does not hold the keys"),
    "a key is there twice": ("roster", _double_keys, "4 clients have 7 keys between them, not 8"),
    "a key is there in two encodings": ("roster", _encode_again, "below 2.255 - 19, and this one is not"),
    "another round": (
        "roster",
        lambda message: message.update(round="round_" + 32 * "0"),
        "roster is that of round_0000",
    ),
    "a ring of others": ("roster", lambda message: message.update(ring=[0, 1, 2, 9]), "the ring of 4 places"),
    "few neighbours": ("roster", lambda message: message.update(degree=2), "degree 2 for 4 clients; 3 neighbours"),
    "half is enough": ("roster", lambda message: message.update(threshold=2), "threshold 2 of 4 that share secrets"),
    "more than all": ("roster", lambda message: message.update(threshold=5), "threshold 5 of 4"),
    "the sum may overflow": (
        "roster",
        lambda message: message["quantisation"].update(max_weight=2000),
        "the sum of 4 clients could reach 4194304000, above 2147483647",
    ),
    "a modulus of its own": (
        "roster",
        lambda message: message.update(modulus_bits=48),
        "modulus_bits is 32 or 64, got 48",
    ),
    "no roster": ("roster", lambda message: message.pop("ring"), "malformed at ring"),
    "two are left": (
        "roster",
        lambda message: message.update(ring=[0, 1], degree=1, clients={k: message["clients"][k] for k in "01"}),
        "2 clients take part, and 3 are the fewest",
    ),
    "its shares were lost": (
        "shares",
        lambda message: message["sharers"].remove(0),
        "shares of client 0 did not arrive",
    ),
    "a sharer is a stranger": ("shares", lambda message: message["sharers"].append(9), "not clients of the roster"),
    "a neighbour's are kept back": ("shares", lambda message: message["shares"].pop("2"), "shares of 2 clients came"),
    "too few shared": (
        "shares",
        lambda message: message.update(sharers=[0, 1], shares={"1": message["shares"]["1"]}),
        "2 of a sharing set are left, fewer than threshold 3",
    ),
    "a ciphertext was changed": (
        "shares",
        _flip("shares", "shares", "2", "ciphertext"),
        "the shares that client 2 sent do not decrypt",
    ),
    "a commitment was changed": (
        "shares",
        _flip("shares", "shares", "3", "commitments", "mask_key"),
        "that client 3 sent are not those it committed to",
    ),
    "here and gone": (
        "survivors",
        lambda message: message["dropped"].append(2),
        "client 2 is said to be both here and gone",
    ),
    "neither here nor gone": ("survivors", lambda message: message["survivors"].remove(2), "are not the 4 sharers"),
    "it is gone itself": (
        "survivors",
        lambda message: message.update(survivors=[1, 2, 3], dropped=[0]),
        "client 0 was dropped: its vector is not in the sum",
    ),
    "too few survive": (
        "survivors",
        lambda message: message.update(survivors=[0, 1], dropped=[2, 3]),
        "2 survivors, and 3 are the fewest",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_client_that_is_lied_to_goes_no_further(service: Any, client: Client, lie: str) -> None:
    step, change, message = LIES[lie]
    with members(client, service.url, 4) as (_, all_):
        lied_to = all_[0]
        lied_to._http.close()
        lied_to._http = httpx.Client(transport=Lying(step, change))
        with pytest.raises(Refused, match=message):
            _in_turns(all_, vectors(1)[0])
        counts = httpx.get(f"{service.url}{lied_to._path}", headers=_bearer(all_[1])).json()["counts"]
        # It is the last to send each, so all that it refuses to send is missing.
        sent = ["roster", "shares", "survivors"].index(step)
        assert counts == {"keys": 4, "shares": 4 if sent else 3, "masked": (0, 3, 4)[sent], "unmask": 0}


def _in_turns(all_: Sequence[Member], vector: NDArray[np.float64]) -> None:
    """The first client is the last to send each message but the last, which it is the first to send."""
    for member in reversed(all_):
        member.publish_keys()
    for member in reversed(all_):
        member.send_shares()
    for member in reversed(all_):
        member.send_vector(vector)
    for member in all_:
        member.unmask()


def test_a_list_of_survivors_that_changed_is_refused_also_after_a_restart(
    service: Any, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "state"
    lie = Lying("survivors", lambda message: message.update(survivors=[0, 1, 2], dropped=[3]))
    with members(client, service.url, 4, file) as (made, all_):
        lied_to = all_[0]
        for step in ("publish_keys", "send_shares"):
            for member in all_:
                getattr(member, step)()
        for member in all_:
            member.send_vector(vectors(1)[0])
        # It dies having decided and before it has answered: with the file on the disk it has to keep to it.
        lied_to._http.close()
        lied_to._http = httpx.Client(transport=_Cut("unmask", lie))
        with pytest.raises(Unreachable):
            lied_to.unmask()
        with (
            secagg.join(service.url, made.tokens[0], file) as restarted,
            pytest.raises(Refused, match="list of survivors changed"),
        ):
            restarted.unmask()


class _Cut(httpx.BaseTransport):
    """A connection that is lost whenever one step is sent."""

    def __init__(self, step: str, below: httpx.BaseTransport) -> None:
        self._step = step
        self._below = below

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and request.url.path.endswith(self._step):
            raise httpx.ReadError("cut")
        return self._below.handle_request(request)

    def close(self) -> None:
        self._below.close()


class _Shaky(httpx.BaseTransport):
    """Each message arrives, and the first reply to it is lost; each question is first put off with a 503."""

    def __init__(self) -> None:
        self._http = httpx.HTTPTransport()
        self._paths = set[str]()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        what = f"{request.method} {request.url.path}"
        first = what not in self._paths
        self._paths.add(what)
        if request.method == "GET":
            return httpx.Response(503, headers={"Retry-After": "1"}) if first else self._http.handle_request(request)
        response = self._http.handle_request(request)
        if first:
            response.close()
            raise httpx.RemoteProtocolError("the reply was lost")
        return response

    def close(self) -> None:
        self._http.close()


def test_lost_replies_and_a_service_that_is_busy_cost_a_client_nothing(service: Any, client: Client) -> None:
    rows = vectors(3)
    with members(client, service.url, 3, output="int") as (made, all_):
        all_[0]._http.close()
        all_[0]._http = httpx.Client(transport=_Shaky())
        ends = at_once([lambda m=m: m.take_part(rows[m.client]) for m in all_])
        result = client.secagg_result(made, timeout=60)
    assert ends == [(0, 1, 2)] * 3
    assert result.sum.tolist() == sum(quantise(row, UNIT) for row in rows).tolist()


def test_a_client_answers_to_a_vector_that_does_not_fit_before_it_masks_it(service: Any, client: Client) -> None:
    with members(client, service.url, 3) as (_, all_):
        for step in ("publish_keys", "send_shares"):
            for member in all_:
                getattr(member, step)()
        with pytest.raises(ValueError, match=r"shape \[50\], got \[49\]"):
            all_[0].send_vector(np.zeros(49))
        with pytest.raises(ValueError, match="1 of 50 values are NaN"):
            all_[0].send_vector([np.nan] + [0.0] * 49)
        with pytest.raises(ValueError, match="weight 2 is outside 1 to 1"):
            all_[0].send_vector(np.zeros(50), weight=2)
        with pytest.raises(Refused, match="sent no vector"):
            all_[0].unmask()
        all_[0].send_vector(np.zeros(50))


def test_nothing_secret_shows_in_what_is_printed(service: Any, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "state"
    with members(client, service.url, 3, file) as (made, all_):
        for step in ("publish_keys", "send_shares"):
            for member in all_:
                getattr(member, step)()
        all_[0].send_vector(vectors(1)[0])
        state = json.loads(file.read_text())
        shown = repr(made) + repr(all_[0]) + repr(all_[0]._state)
    hidden = [state["mask_private"], state["share_private"], state["self_seed"], *made.tokens]
    hidden += [share for both in state["held"].values() for share in both.values()]
    assert len(hidden) == 3 + 3 + 6
    assert not [secret for secret in hidden if secret in shown]


def _bearer(member: Member) -> dict[str, str]:
    return {"Authorization": member._exchange.request("GET", "/", {}, 1.0).headers["Authorization"]}
