"""A round's state: every message is counted once or refused whole, and of no client are both secrets ever known."""

import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, select

from tests.privacy.members import CIPHERTEXT, Clients, Clock, new_round
from warpdesk.secagg import key_agreement
from warpdesk.secagg.quantisation import Quantisation
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.secure_aggregation.spec import OPERATION
from warpdesk_server.privacy.database import connect, create_tables, reading, writing
from warpdesk_server.privacy.errors import Refused
from warpdesk_server.privacy.rounds import phases, tables, unmasking
from warpdesk_server.privacy.rounds.errors import (
    Aborted,
    AlreadySent,
    DoubleReveal,
    ForgedShare,
    MissingShare,
    NoRoom,
    NoShare,
    NotANeighbour,
    NotYet,
    PhaseOver,
    TooManyRounds,
    UnknownMember,
    UnknownRound,
    UnusableKey,
    WrongLength,
)
from warpdesk_server.privacy.rounds.records import PHASES, Member, Phase
from warpdesk_server.privacy.rounds.state import Rounds
from warpdesk_server.privacy.rounds.terms import Bounds, problems
from warpdesk_server.privacy.rounds.unmasking import Unrecoverable

KEYS = key_agreement.public_key(b"\1" * 32), key_agreement.public_key(b"\2" * 32)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rounds(engine: Engine, clock: Clock) -> Rounds:
    create_tables(engine)
    return Rounds(engine, clock)


@pytest.fixture
def five(rounds: Rounds, clock: Clock) -> Clients:
    return Clients(rounds, clock, new_round(5))


def everything(engine: Engine) -> list[Any]:
    """Every row of every table of rounds."""
    with reading(engine) as connection:
        all_tables = (tables.rounds, tables.members, tables.shares, tables.reveals)
        return [connection.execute(select(table).order_by(*table.primary_key)).all() for table in all_tables]


def test_a_round_with_a_drop_out_gives_the_seeds_of_the_masks_in_the_sum(five: Clients) -> None:
    five.play("aggregating", dropped=[3])

    work = five.rounds.aggregation(five.id)

    assert work is not None
    assert (work.survivors, work.params["dropped"], work.order) == ([0, 1, 2, 4], [3], [0, 1, 2, 3, 4])
    assert unmasking.self_seeds(work.shares, [4, 0]) == five.secrets[4][0] + five.secrets[0][0]
    theirs = [key_agreement.pair_seed(s, five.secrets[s][1], 3, five.public(3), five.id) for s in (0, 1, 2, 4)]
    seeds = unmasking.pair_seeds(work.shares, work.pairs)
    assert {s: seeds[32 * at : 32 * at + 32] for at, (_, s) in enumerate(work.pairs)} == dict(
        zip((0, 1, 2, 4), theirs, strict=True)
    )
    rows = {"masked": ArrayInfo("uint32", (4, 4)), "self_seeds": ArrayInfo("uint8", (4, 32))}
    OPERATION.validate(work.params, {**rows, "pair_seeds": ArrayInfo("uint8", (4, 32))})


def test_with_many_clients_each_shares_with_some_and_the_operation_takes_that_graph(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path}/many.db")
    create_tables(engine)
    clock = Clock()
    many = Clients(Rounds(engine, clock), clock, new_round(60))
    many.play("aggregating", dropped=range(0, 60, 11))

    roster, work = many.rounds.roster(many.id), many.rounds.aggregation(many.id)

    assert work is not None
    assert roster.degree < 59
    assert roster.threshold > (roster.degree + 1) / 2
    assert list(roster.ring) != sorted(roster.ring), "places on the ring are drawn"
    seeds = unmasking.pair_seeds(work.shares, work.pairs)
    gone, stayed = work.pairs[-1]
    assert seeds[-32:] == key_agreement.pair_seed(stayed, many.secrets[stayed][1], gone, many.public(gone), many.id)
    survivors = len(work.survivors)
    OPERATION.validate(
        work.params,
        {
            "masked": ArrayInfo("uint32", (survivors, 4)),
            "self_seeds": ArrayInfo("uint8", (survivors, 32)),
            "pair_seeds": ArrayInfo("uint8", (len(work.pairs), 32)),
        },
    )
    assert len(work.pairs) < len(work.params["dropped"]) * survivors
    engine.dispose()


def test_a_phase_ends_when_all_have_sent_or_its_time_is_over(five: Clients) -> None:
    five.send_keys([0, 1, 2, 4])
    assert five.phase == "keys"
    assert five.rounds.due() == []
    assert five.rounds.advance(five.id) == "keys", "its time is not over"
    assert five.late() == "shares"
    assert set(five.rounds.roster(five.id).clients) == {0, 1, 2, 4}
    five.send_shares([0, 1, 2, 4])
    assert five.phase == "masked"
    five.send_masked([0, 1, 4])
    assert five.late() == "unmask"
    assert five.rounds.survivors(five.id) == ([0, 1, 4], [2])
    five.send_unmask([0, 4, 1])
    assert five.phase == "aggregating"


def test_who_was_late_in_one_phase_is_refused_in_every_later_one(five: Clients) -> None:
    five.send_keys([0, 1, 2, 3])
    five.late()
    with pytest.raises(PhaseOver, match="the phase keys has ended; the round is in shares"):
        five.send_keys([4])
    with pytest.raises(PhaseOver, match="client 4 is not in the roster"):
        five.rounds.send_shares(five.member(4), {}, {})
    five.send_shares([0, 1, 2])
    assert five.late() == "masked"
    with pytest.raises(PhaseOver, match="client 3 is out of the round: its shares were not there in time"):
        five.rounds.place(five.member(3))
    with pytest.raises(PhaseOver, match="client 3 is out"):
        five.rounds.shares_for(five.member(3))
    assert five.rounds.shares_for(five.member(0))[0] == [0, 1, 2]
    five.send_masked([0, 1, 2])
    assert five.rounds.survivors(five.id) == ([0, 1, 2], []), "who never shared masked with nobody"


def test_a_masked_vector_after_its_time_is_refused_and_its_client_stays_dropped(five: Clients) -> None:
    five.play("masked")
    five.send_masked([0, 1, 2, 3])
    five.clock.now += 30.0
    with pytest.raises(PhaseOver, match="the time for masked is over"):  # before anybody has ended the phase
        five.send_masked([4])
    five.rounds.advance(five.id)
    with pytest.raises(PhaseOver):
        five.send_masked([4])
    assert five.rounds.survivors(five.id) == ([0, 1, 2, 3], [4])
    with pytest.raises(PhaseOver, match="client 4 was dropped: its masked vector was not there in time"):
        five.rounds.send_unmask(five.member(4), {}, {})


@pytest.mark.parametrize(
    ("phase", "sent", "why"),
    [
        ("keys", 2, "2 clients sent keys in time, and 3 are the least"),
        ("shares", 2, "2 clients sent shares in time, and 3 are the least"),
        ("masked", 2, "2 masked vectors came in time, and 3 are the least"),
        ("unmask", 2, "2 clients are left that hold shares of client 0's secrets, and the threshold is 3"),
    ],
)
def test_a_round_that_too_few_stay_in_is_aborted_and_says_why(five: Clients, phase: Phase, sent: int, why: str) -> None:
    five.play(phase)
    send = {"keys": five.send_keys, "shares": five.send_shares, "masked": five.send_masked, "unmask": five.send_unmask}
    send[phase](range(sent))

    assert five.late() == "aborted"
    assert five.rounds.status(five.id).why == why
    with pytest.raises(Aborted, match=why):
        send[phase]([4])


def test_a_client_whose_sharing_set_falls_below_the_threshold_ends_the_round(rounds: Rounds, clock: Clock) -> None:
    ten = Clients(rounds, clock, new_round(10, threshold=8, min_clients=8))
    ten.play("masked")
    ten.send_masked(range(7))
    assert ten.late() == "aborted"
    why = "7 clients are left that hold shares of client 0's secrets, and the threshold is 8"
    assert rounds.status(ten.id).why == why


_TOO_EARLY: dict[str, tuple[Phase, Callable[[Rounds, Member], Any]]] = {
    "roster": ("keys", lambda r, m: r.roster(m.round_id)),
    "shares": ("keys", lambda r, m: r.send_shares(m, {}, {})),
    "others' shares": ("shares", lambda r, m: r.shares_for(m)),
    "masked": ("shares", lambda r, m: r.place(m)),
    "survivors": ("masked", lambda r, m: r.survivors(m.round_id)),
    "unmask": ("masked", lambda r, m: r.send_unmask(m, {}, {})),
}


@pytest.mark.parametrize("what", _TOO_EARLY)
def test_what_belongs_to_a_later_phase_is_not_taken_yet(five: Clients, what: str) -> None:
    phase, ask = _TOO_EARLY[what]
    five.play(phase)
    with pytest.raises(NotYet, match=f"the round is in the phase {phase}, and this belongs to"):
        ask(five.rounds, five.member(0))


def _unmask(change: Callable[[dict[int, bytes], dict[int, bytes]], Any]) -> Callable[[Clients], Any]:
    def send(five: Clients) -> None:
        both = five.reveals_of(0)
        change(*both)
        five.rounds.send_unmask(five.member(0), *both)

    return send


def _shares(change: Callable[[dict[int, bytes], dict[int, tuple[bytes, bytes]]], Any]) -> Callable[[Clients], Any]:
    def send(five: Clients) -> None:
        both = five.shares_of(0)
        change(*both)
        five.rounds.send_shares(five.member(0), *both)

    return send


_REFUSED: dict[str, tuple[Phase, type[Refused], str, Callable[[Clients], Any]]] = {
    "keys twice": ("keys", AlreadySent, "client 1 has sent its keys", lambda five: five.send_keys([1, 1])),
    "a short key": ("keys", WrongLength, "mask_public has 31 bytes, not 32",
                    lambda five: five.rounds.send_keys(five.member(0), KEYS[0][:31], KEYS[1])),
    "a key of low order": ("keys", UnusableKey, "share_public is a point of low order",
                           lambda five: five.rounds.send_keys(five.member(0), KEYS[0], bytes(32))),
    "a second encoding of a key": ("keys", UnusableKey, r"mask_public: an X25519 public key is .* below 2\^255 - 19",
                                   lambda five: five.rounds.send_keys(five.member(0), KEYS[0][:31] + b"\xff", KEYS[1])),
    "another's key": ("keys", UnusableKey, "another client of the round has sent one of these keys",
                      lambda five: (five.send_keys([1]),
                                    five.rounds.send_keys(five.member(0), KEYS[0], five.public(1)))),
    "one key for both": ("keys", UnusableKey, "are the same key",
                         lambda five: five.rounds.send_keys(five.member(0), KEYS[0], KEYS[0])),
    "shares twice": ("shares", AlreadySent, "client 1 has sent its shares", lambda five: five.send_shares([1, 1])),
    "a share too few": ("shares", MissingShare, "ciphertexts has 3 of 4 clients; client 2 is missing",
                        _shares(lambda sent, commitments: sent.pop(2))),
    "a share for nobody": ("shares", NotANeighbour, "ciphertexts names client 9, which is none of the 4 expected",
                           _shares(lambda sent, commitments: sent.update({9: CIPHERTEXT}))),
    "a share for oneself": ("shares", NotANeighbour, "ciphertexts names client 0",
                            _shares(lambda sent, commitments: sent.update({0: CIPHERTEXT}))),
    "no commitment to the own share": ("shares", MissingShare, "commitments has 4 of 5 clients; client 0 is missing",
                                       _shares(lambda sent, commitments: commitments.pop(0))),
    "a long ciphertext": ("shares", WrongLength, "the ciphertext for client 1 has 97 bytes, not 96",
                          _shares(lambda sent, commitments: sent.update({1: bytes(97)}))),
    "a short commitment": ("shares", WrongLength, "a commitment for client 1 has 31 bytes, not 32",
                           _shares(lambda sent, commitments: commitments.update({1: (bytes(31), bytes(32))}))),
    "a vector twice": ("masked", AlreadySent, "client 1 has sent its masked vector",
                       lambda five: five.send_masked([1, 1])),
    "a vector's place twice": ("masked", AlreadySent, "client 1 has sent its masked vector",
                               lambda five: (five.send_masked([1]), five.rounds.place(five.member(1)))),
    "unmask twice": ("unmask", AlreadySent, "client 1 has sent its shares of others' secrets",
                     lambda five: five.send_unmask([1, 1])),
    "the mask key of a survivor": ("unmask", DoubleReveal, "client 1 survived: only its self seed may be recovered",
                                   _unmask(lambda seeds, keys: keys.update({1: bytes(40)}))),
    "the mask key instead": ("unmask", DoubleReveal, "client 1 survived: only its self seed may be recovered",
                             _unmask(lambda seeds, keys: keys.update({1: seeds.pop(1)}))),
    "the self seed of one gone": ("unmask", DoubleReveal, "client 3 dropped out: only its mask key may be recovered",
                                  _unmask(lambda seeds, keys: seeds.update({3: bytes(40)}))),
    "the self seed instead": ("unmask", DoubleReveal, "client 3 dropped out: only its mask key may be recovered",
                              _unmask(lambda seeds, keys: seeds.update({3: keys.pop(3)}))),
    "a short share": ("unmask", WrongLength, "the share of client 1's self_seed has 39 bytes, not 40",
                      _unmask(lambda seeds, keys: seeds.update({1: seeds[1][:39]}))),
    "a share with another bit": ("unmask", ForgedShare, "the share of client 3's mask_key is not the one it committed",
                                 _unmask(lambda seeds, keys: keys.update({3: bytes([keys[3][0] ^ 1]) + keys[3][1:]}))),
    "somebody else's share": ("unmask", ForgedShare, "the share of client 1's self_seed is not the one it committed to",
                              _unmask(lambda seeds, keys: seeds.update({1: seeds[2]}))),
    "a share of nobody's": ("unmask", NotANeighbour, "self_seed names client 9",
                            _unmask(lambda seeds, keys: seeds.update({9: bytes(40)}))),
    "a reveal too few": ("unmask", MissingShare, "self_seed has 3 of 4 clients; client 0 is missing",
                         _unmask(lambda seeds, keys: seeds.pop(0))),
    "no key of one gone": ("unmask", MissingShare, "mask_key has 0 of 1 clients; client 3 is missing",
                           _unmask(lambda seeds, keys: keys.clear())),
}  # fmt: skip


@pytest.mark.parametrize("name", _REFUSED)
def test_a_message_that_is_wrong_has_its_own_error_and_changes_nothing(
    five: Clients, engine: Engine, name: str
) -> None:
    phase, error, sentence, send = _REFUSED[name]
    five.play(phase, dropped=[3])
    if name.endswith("twice") or name == "another's key":  # the first of the two is taken, and all that changes
        with pytest.raises(error, match=sentence):
            send(five)
        counts = dict(five.rounds.status(five.id).counts)
        kept = 4 if phase == "unmask" else 5
        assert counts[phase] == 1
        assert all(counts[earlier] >= kept - 1 for earlier in PHASES[: PHASES.index(phase)])
        return
    before = everything(engine)

    with pytest.raises(error, match=sentence):
        send(five)

    assert everything(engine) == before


def test_a_token_opens_its_own_place_in_its_own_round_alone(rounds: Rounds, clock: Clock) -> None:
    one, other = (Clients(rounds, clock, new_round(3)) for _ in range(2))

    assert [rounds.member(one.id, token) for token in one.tokens] == [one.member(client) for client in range(3)]
    stolen = one.tokens[1].replace("_1_", "_0_", 1)
    for wrong in (
        stolen,
        one.tokens[1][:-1] + "!",
        one.tokens[1] + "x",
        "",
        "wd_0",
        one.tokens[1].replace("_1_", "_9_"),
    ):
        with pytest.raises(UnknownMember):
            rounds.member(one.id, wrong)
    with pytest.raises(UnknownMember):
        rounds.member(other.id, one.tokens[1])
    with pytest.raises(UnknownRound, match="there is no round 'round_'"):
        rounds.member("round_", one.tokens[1])


def test_the_store_keeps_no_token(five: Clients, engine: Engine) -> None:
    kept = repr(everything(engine))
    assert not any(token.split("_", 3)[3] in kept for token in five.tokens)


def test_of_many_at_once_each_message_counts_once_and_each_phase_ends_once(rounds: Rounds, clock: Clock) -> None:
    eight = Clients(rounds, clock, new_round(8))

    def at_once(send: Callable[[int], Any]) -> None:
        """Everybody sends everything three times at the same time."""
        start = threading.Barrier(24, timeout=60)

        def one(client: int) -> bool:
            start.wait()
            try:
                send(client)
            except (AlreadySent, PhaseOver):  # as which it comes too late is chance
                return False
            return True

        with ThreadPoolExecutor(24) as threads:
            taken = list(threads.map(one, [*eight.all] * 3))
        assert sum(taken) == 8

    at_once(lambda client: eight.send_keys([client]))
    ring = rounds.roster(eight.id).ring
    messages = {client: eight.shares_of(client) for client in eight.all}
    at_once(lambda client: rounds.send_shares(eight.member(client), *messages[client]))
    at_once(lambda client: eight.send_masked([client]))
    at_once(lambda client: eight.send_unmask([client]))
    assert eight.phase == "aggregating"
    assert rounds.roster(eight.id).ring == ring


def test_of_many_that_end_a_phase_one_does(five: Clients) -> None:
    five.play("masked")
    five.send_masked([0, 1, 2])
    five.clock.now += 30.0
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: five.rounds.advance(five.id), range(16))) == {"unmask"}
    deadline = five.rounds.status(five.id).deadline
    assert deadline == five.clock.now + 40.0
    five.send_unmask([0, 1, 2])
    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(lambda _: five.rounds.end(five.id, "done"), range(16))) == 1
    assert not five.rounds.end(five.id, "aborted", "too late")
    assert five.rounds.status(five.id).why is None


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rounds]:
    engine = connect(f"sqlite:///{tmp_path_factory.mktemp('rounds')}/ledger.db")
    create_tables(engine)
    yield Rounds(engine, Clock())
    engine.dispose()


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), clients=st.integers(3, 7))
def test_whoever_drops_out_whenever_no_client_loses_both_its_secrets(
    quick: Rounds, data: st.DataObject, clients: int
) -> None:
    clock = quick._clock
    assert isinstance(clock, Clock)
    played = Clients(quick, clock, new_round(clients, owner=secrets.token_hex(8)))
    left = set(played.all)
    for send in (played.send_keys, played.send_shares, played.send_masked, played.send_unmask):
        stay = data.draw(st.sets(st.sampled_from(sorted(left)), min_size=max(1, len(left) - 2)))
        before = played.phase
        send(stay)
        left = stay
        if played.phase == before:
            played.late()
        if played.phase == "aborted":
            break
    status = quick.status(played.id)
    assert status.phase in ("aggregating", "aborted")
    if status.phase == "aborted":
        assert status.why
        return
    work = quick.aggregation(played.id)
    assert work is not None
    assert not work.shares.self_seeds.keys() & work.shares.mask_keys.keys()
    assert unmasking.self_seeds(work.shares, work.survivors) == b"".join(played.secrets[c][0] for c in work.survivors)
    assert len(unmasking.pair_seeds(work.shares, work.pairs)) == 32 * len(work.pairs)


def test_shares_of_two_secrets_are_told_apart_from_shares_of_one(five: Clients) -> None:
    """A client commits to whatever it likes: that its shares fit together is seen when they are put together."""
    five.play("shares")
    first = five.shares_of(1)
    held = {holder: given[1] for holder, given in five.held.items()}
    five.secrets[1] = five.secrets[0]
    second = five.shares_of(1)
    five.held[2][1] = held[2]
    second[1][2] = first[1][2]
    five.send_shares([0, 2, 3, 4])
    five.rounds.send_shares(five.member(1), *second)
    five.send_masked([0, 2, 3, 4])
    five.late()
    five.send_unmask([0, 2, 3, 4])
    work = five.rounds.aggregation(five.id)
    assert work is not None

    with pytest.raises(Unrecoverable, match="the mask key of client 1 cannot be recovered"):
        unmasking.pair_seeds(work.shares, work.pairs)


def test_a_mask_key_that_is_not_the_published_one_is_noticed(five: Clients) -> None:
    five.play("shares")
    five.secrets[1] = (five.secrets[1][0], b"\7" * 32)
    five.play("aggregating", dropped=[1])
    work = five.rounds.aggregation(five.id)
    assert work is not None

    with pytest.raises(Unrecoverable, match="client 1's mask key give another key than the one it published"):
        unmasking.pair_seeds(work.shares, work.pairs)


def _secrets_of(five: Clients) -> list[bytes]:
    return [share for given in five.held.values() for both in given.values() for share in both]


@pytest.mark.parametrize("ending", ["done", "aborted"])
def test_what_was_secret_is_in_no_file_of_the_database_once_it_is_erased(
    tmp_path: Path, clock: Clock, ending: Any
) -> None:
    engine = connect(f"sqlite:///{tmp_path}/ledger.db")
    create_tables(engine)
    rounds = Rounds(engine, clock)
    five = Clients(rounds, clock, new_round(5))
    five.play("aggregating", dropped=[3])

    def found() -> int:
        written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        return sum(share in written for share in _secrets_of(five))

    assert found() == 20, "four survivors hold a share of each of five clients"
    with pytest.raises(ValueError, match="has not ended"):
        rounds.erase(five.id)
    assert rounds.end(five.id, ending, None)
    assert rounds.due() == [five.id], "it holds what is to be erased"
    rounds.erase(five.id)

    assert found() == 0
    assert rounds.due() == []
    assert rounds.aggregation(five.id) is None
    engine.dispose()


def test_no_page_keeps_a_copy_of_a_secret_that_was_moved_when_another_round_was_erased(
    tmp_path: Path, clock: Clock
) -> None:
    engine, chance = connect(f"sqlite:///{tmp_path}/ledger.db"), Random(7)
    create_tables(engine)
    rounds, live, left = Rounds(engine, clock), dict[str, list[bytes]](), 0
    for _ in range(60):
        clients = chance.choice([4, 6, 9])
        made, _ = rounds.create(new_round(clients), Bounds(100, 1 << 30, 1 << 30))
        pairs = [(one, other) for one in range(clients) for other in range(clients)]
        sent = [chance.randbytes(tables.CIPHERTEXT_BYTES) for _ in pairs]
        given_away = [chance.randbytes(40) for _ in pairs]
        with writing(engine) as connection:
            for (sender, recipient), ciphertext in zip(pairs, sent, strict=True):
                row = {"round": made, "recipient": recipient, "sender": sender, "ciphertext": ciphertext}
                commitments = {kind: chance.randbytes(32) for kind in tables.KINDS}
                connection.execute(tables.shares.insert().values(**row, **commitments))
        with writing(engine) as connection:
            for (holder, owner), share in zip(pairs, given_away, strict=True):
                row = {"round": made, "owner": owner, "holder": holder, "kind": "self", "share": share}
                connection.execute(tables.reveals.insert().values(**row))
        live[made] = sent + given_away
        assert rounds.cancel(made)
        if len(live) > chance.choice([1, 2]):
            chosen = chance.choice(list(live))
            rounds.erase(chosen)
            written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
            left += sum(secret in written for secret in live.pop(chosen))
            assert all(secret in written for own in live.values() for secret in own)

    assert left == 0
    engine.dispose()


def test_a_round_is_due_until_no_log_holds_its_shares(tmp_path: Path, clock: Clock) -> None:
    engine = connect(f"sqlite:///{tmp_path}/ledger.db")
    create_tables(engine)
    rounds = Rounds(engine, clock)
    five = Clients(rounds, clock, new_round(5))
    five.play("aggregating")
    rounds.end(five.id, "done")

    def found() -> bool:
        written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        return any(share in written for share in _secrets_of(five))

    with reading(engine) as connection:
        connection.execute(select(tables.shares)).all()
        rounds.erase(five.id)
        assert rounds.due() == [five.id]
        assert found()
        log = tmp_path / "ledger.db-wal"
        size = log.stat().st_size
        rounds.erase(five.id)
        assert log.stat().st_size < size + 20_000, "nothing is written anew where nothing was deleted"
    rounds.erase(five.id)
    assert rounds.due() == []
    assert not found()
    engine.dispose()


def test_who_begins_to_submit_late_does_not_forget_the_job_that_another_process_has_queued(five: Clients) -> None:
    five.play("aggregating")
    five.rounds.submitted(five.id, "job_1", {"masked": "blake3:1"})
    five.rounds.submitted(five.id, None, {"masked": "blake3:1"})

    assert five.rounds.status(five.id).job_id == "job_1"


def test_an_erased_round_keeps_its_outcome_and_nothing_else(five: Clients, engine: Engine) -> None:
    five.play("aggregating")
    five.rounds.submitted(five.id, "job_1", {"masked": "blake3:1"})
    assert five.rounds.arrays(five.id) == {"masked": "blake3:1"}
    five.rounds.end(five.id, "done")
    five.rounds.erase(five.id)

    assert everything(engine)[2:] == [[], []]
    assert five.rounds.arrays(five.id) == {}
    assert (five.phase, five.rounds.status(five.id).job_id) == ("done", "job_1")
    assert five.rounds.survivors(five.id) == ([0, 1, 2, 3, 4], [])
    assert not five.rounds.submitted(five.id, "job_2", {})
    with pytest.raises(PhaseOver, match="what clients sent each other is erased"):
        five.rounds.shares_for(five.member(0))


def test_rounds_of_one_key_and_bytes_of_all_have_limits(rounds: Rounds) -> None:
    small, bounds = new_round(4, dimension=1000), Bounds(2, 40_000, 40_000)  # 16,000 bytes
    first, _ = rounds.create(small, bounds)
    rounds.create(small, bounds)
    with pytest.raises(TooManyRounds, match="the key has 2 live rounds; the limit is 2"):
        rounds.create(small, Bounds(2, 100_000, 100_000))
    other = new_round(4, dimension=1000, owner="somebody else")
    with pytest.raises(NoRoom, match="are 16000 bytes; live rounds of all keys may hold 40000 together"):
        rounds.create(other, bounds)
    with writing(rounds._engine) as connection:
        phases.end(connection, first, "keys", "aborted", 0.0, "for the test")
    rounds.create(other, bounds)


def test_one_key_takes_no_more_than_its_share_of_the_room_for_rounds(rounds: Rounds) -> None:
    request, bounds = new_round(4, dimension=1000), Bounds(100, 40_000, 160_000)  # 16,000 bytes
    rounds.create(request, bounds)
    rounds.create(request, bounds)
    with pytest.raises(NoShare, match="rounds of one key may hold 40000 together, and the key's have 32000"):
        rounds.create(request, bounds)
    rounds.create(new_round(4, dimension=1000, owner="somebody else"), bounds)


def test_creators_at_once_do_not_pass_a_limit_together(rounds: Rounds) -> None:
    def create(_: int) -> bool:
        try:
            rounds.create(new_round(3), Bounds(5, 1 << 30, 1 << 30))
        except TooManyRounds:
            return False
        return True

    with ThreadPoolExecutor(12) as threads:
        assert sum(threads.map(create, range(12))) == 5


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clients": 2}, "2 clients are outside 3 to 10000"),
        ({"clients": 10_001}, "10001 clients are outside 3 to 10000"),
        ({"min_clients": 2}, "min_clients 2 is outside 3 to 10 clients"),
        ({"min_clients": 11}, "min_clients 11 is outside 3 to 10 clients"),
        ({"threshold": 5, "min_clients": 9}, "threshold 5 of 10 clients must lie between 6, more than half, and 9"),
        ({"threshold": 10, "min_clients": 9}, "threshold 10 of 10 clients must lie between 6, more than half, and 9"),
        ({"threshold": 600, "clients": 1001, "min_clients": 900}, "of more than 1000 clients each shares with some"),
        ({"quantisation": Quantisation(clip="1", scale="0.1", max_weight=1)}, "clip * scale rounds to 0"),
        (
            {"quantisation": Quantisation(clip="1", scale="214748365", max_weight=1)},
            "10 clients * weight 1 * 214748365 (clip * scale) = 2147483650, above 2147483647, the largest mod 2**32",
        ),
        (
            {"quantisation": Quantisation(clip="1", scale="1", max_weight=2), "output": "mean"},
            "a mean of weighted vectors needs the sum of their weights",
        ),
    ],
)
def test_a_round_that_could_not_be_right_is_refused_with_the_numbers(
    quick: Rounds, changes: dict[str, Any], sentence: str
) -> None:
    request = new_round(**{"clients": 10, **changes})
    assert any(sentence in detail for _, detail in problems(request))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        quick.create(request, Bounds(10, 1 << 40, 1 << 40))


def test_no_secret_is_shown_where_a_round_is_printed(five: Clients) -> None:
    five.play("aggregating")
    work = five.rounds.aggregation(five.id)
    received = five.rounds.shares_for(five.member(0))

    shown: Sequence[str] = [repr(work), repr(received)]

    for share in _secrets_of(five):
        assert not any(repr(share)[2:-1] in text or share.hex() in text for text in shown)
