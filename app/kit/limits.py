"""Limits of what one caller may take of this process: numbers, a rate of requests, and a share of what is finite."""

import ipaddress
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType

from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.privacy.rounds.terms import MOST_CLIENTS

# --- what every caller may take of this process; what an operator may choose is in `app/settings.py`

# Files that are kept for all but connections: Redis, databases, logs, and what a request opens beside its connection.
FILES_OF_OTHERS = 256
FEWEST_CONNECTIONS = 16
REFUSED_CONNECTIONS = 100  # that are told why they are refused, at once

OWNERS = 20  # keys that may have all the waits and streams that one key may, at the same time

# Part of the connections that all workers together may have requests on; one key half as many. Hosts share keys.
WORKERS_PART = 2

# What a JSON body may hold. Keys and values are counted in its bytes before it is parsed.
JSON_KEYS = 1000
JSON_VALUES = 2  # values and lists for each number that inline inputs may hold: those of an array of shape (n, 1)
INPUTS = 32
JSON_KEYS_OF_PLANS = 32_000  # about a dozen for each step
INPUTS_OF_PLANS = 1024
# Sets of parameters that lists of one request make, in all of its jobs and steps: to check one takes up to 4 ms. They
# count as submissions of the key too.
SETS = 1000
# Bytes of JSON, about, that Redis keeps of a job's request: parameters, and which parts of datasets were read.
RECORD = 1 << 20
LABELS = 64 << 10  # bytes of JSON that the labels of all inputs of a job may have: Redis has them in its record
PARAMS = 64
PROBLEMS = 1000  # more are told by their number alone: pydantic would make an object for each

# Keys in what a member of a round sends about the others. Where each shares with each, that is a ciphertext and two
# commitments under their number, for every other.
JSON_KEYS_OF_MEMBERS = 4 * MOST_CLIENTS

# Jobs of one bundle, and the keys that its body may have: a job has some fifteen, and those of its params.
BUNDLE = 1000
JSON_KEYS_OF_A_BUNDLE = 32 * BUNDLE

# Bundles of one owner, and of all, whose bodies are in memory until their jobs are queued. Two are worked on at a time,
# of different owners: each keeps a processor busy, for up to a second.
BUNDLES_PER_KEY = 4
BUNDLES_IN_ALL = 16
BUNDLE_TURNS = 2

# Bytes of the results in the answer to a bundle. Jobs whose results would be beyond it are answered without.
RESULTS_OF_A_BUNDLE = 8 << 20

# JSON bodies that are looked at in threads at once: each may keep the interpreter from others for half a second. Those
# up to the size are looked at on the event loop: a thread would take longer than the parsing.
JSON_SMALL = 64 << 10
JSON_PER_KEY = 1
JSON_IN_ALL = 2

# The most memory that parsing takes for each byte and for each value of a body; a test holds the worst bodies to it. It
# is the memory limit of parsing: 56 MiB for 4 MiB with the values above. A body may be parsed twice, once for its
# decimals, and each character of a text with one beyond U+FFFF takes four bytes.
JSON_MEMORY_OF_A_BYTE = 9
JSON_MEMORY_OF_A_VALUE = 160

# What reading a CSV may take. Its cells may be half as many as the most bytes of a CSV: each is a digit and a comma.
CSV_COLUMNS = 10_000
CSV_SECONDS = 120  # of processor time; 16 MiB take about 5
CSV_PER_KEY = 1  # read at once
CSV_IN_ALL = 2
CSV_WAIT = 20.0  # seconds that one more waits for its turn

# A CSV up to this size is read by the API itself: to start a process would take longer. Its cells take some 4 MiB.
CSV_SMALL = 64 << 10

# Memory of the process that reads a CSV: of the interpreter with a batch of cells, and for each byte of the body.
# A cell has two bytes or more and becomes eight; the rest is the body itself and one copy.
CSV_MEMORY = 64 << 20
CSV_BYTES = 8

# What a dataset may hold, and what one request may append to it. The rows of an append are in memory, a few times.
DATASET_COLUMNS = 64
DATASET_ASSETS = 10_000
DATASET_ROWS = 1_000_000
DATASET_VERSIONS = 200_000  # 56 bytes of memory each, and the first read after a start looks at each
ROWS_AT_ONCE = 100_000
ROW_BYTES_AT_ONCE = 64 << 20

# Assets that an input of a job, or a request for rows, may name: the job's record in Redis has them.
ASSETS_OF_INPUT = 1000

# Threads that read and write datasets, half of them for one owner: writers of one dataset wait for each other.
DATASET_THREADS = 8

# Bytes that one request reads of datasets into memory; more are read into files of the store's disk. And the bytes of
# an array that are looked at, or written in another order, at once.
READ_IN_MEMORY = 16 << 20
READ_AT_ONCE = 2 << 20

# Bytes that may wait to be written: of .npy uploads, of rounds' vectors and of workers' results. What is more waits for
# nothing. A piece is an object, and a caller decides how finely a body is cut: each counts as so many at the least.
UNWRITTEN_PER_KEY = 32 << 20
UNWRITTEN_IN_ALL = 96 << 20
PIECE = 1024

# Of those, what one request holds before a thread writes it. An upload takes more while the thread is at work.
UPLOAD_WRITTEN_AT_ONCE = 2 << 20
UPLOAD_BACKLOG = 8 << 20
VECTOR_WRITTEN_AT_ONCE = 2 << 20
RESULTS_WRITTEN_AT_ONCE = 4 << 20

# Bytes in memory for workers of other hosts, beside those: documents of results, and inputs on their way to them.
FOR_WORKERS_PER_KEY = 48 << 20  # one of the largest, and some small ones
FOR_WORKERS_IN_ALL = 64 << 20
DOCUMENTS = 32 << 20  # of one request; they hold what is no array
RESULTS = 1024  # of one request
WANTED = 1 << 20  # bytes of a list of inputs
INPUTS_AT_ONCE = 8 << 20  # bytes of inputs in one answer

# Submissions that are worked on at once: their threads keep the interpreter from the event loop, which refuses. On two
# cores under five times what they can do, sixteen took as many jobs and let callers wait ten times as long for a
# refusal, and four took fewer. One owner has so many turns, and the spare ones are always left to others.
TURNS = 8
SPARE_TURNS = 2

# Submissions that an owner may have under way, with those that wait for their turn, while nobody else has any; and how
# long one may wait for it, by what turns took of late.
SUBMISSIONS = 256
TURN_SECONDS = 0.25

# Threads that wait for the database of budgets and rounds, half of them for one owner: where it hangs, it has these and
# no others.
LEDGER_THREADS = 8

_MOST = 10_000  # buckets that are kept


class Limits:
    """The API's rate limit for each sender: `burst` requests at once, and `rate` a second on average.

    `sentence` is the refusal's text. It keeps 10,000 token buckets. Full ones are forgotten first, which changes
    nothing, then those that were used longest ago.
    """

    def __init__(self, rate: float, burst: int, sentence: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._sentence = sentence
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted; the latest last

    def take(self, whose: str, amount: int = 1) -> None:
        """Count requests of a sender against the rate limit, or refuse them with 429 and the seconds until they may
        come."""
        now = self._clock()
        tokens, counted = self._buckets.pop(whose, (self._burst, now))
        tokens = min(self._burst, tokens + (now - counted) * self._rate)
        if tokens < amount:
            self._buckets[whose] = tokens, now
            wait = max(1, math.ceil((amount - tokens) / self._rate))
            sentence = f"{self._sentence}: {self._rate:g} a second, {self._burst:g} at once"
            raise Refusal("rate-limited", sentence, headers={"Retry-After": str(wait)})
        self._buckets[whose] = tokens - amount, now
        if len(self._buckets) > _MOST:
            self._forget(now)

    def _forget(self, now: float) -> None:
        full = [
            whose
            for whose, (tokens, counted) in self._buckets.items()
            if tokens + (now - counted) * self._rate >= self._burst
        ]
        oldest = list(self._buckets)[: _MOST // 10]  # so many at once that this is done seldom
        for whose in full or oldest:
            del self._buckets[whose]


class Shares:
    """A quota of places or bytes of an API process: every owner may hold `each` at once, and all owners together
    `whole`.

    `what` names the supply in a refusal, `owner` the kind of owner. It may be used by any thread.
    """

    def __init__(self, what: str, *, each: int, whole: int, owner: str = "key") -> None:
        self.each, self.whole = each, whole
        self._what, self._owner = what, owner
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}  # by owner, without those who hold nothing
        self._total = 0

    def take(self, owner: str, amount: int = 1) -> "Share":
        """Take a share of the API's quota until the share is closed: `with shares.take(key.id):`.

        Refused with 429 if the owner would hold too much, with 503 if all owners together would.
        """
        share = Share(self, owner)
        share.grow(amount)
        return share

    def held(self, owner: str | None = None) -> int:
        """The amount of the API's quota that one owner holds, or all owners together."""
        return self._total if owner is None else self._held.get(owner, 0)

    def _add(self, owner: str, amount: int) -> None:
        with self._lock:
            held = self._held.get(owner, 0)
            if held + amount > self.each:
                limit = f"one {self._owner} may hold {self.each} at once"
                sentence = f"{self._what}: {limit}; it holds {held} and needs {amount} more"
                raise Refusal("share-used-up", sentence, headers={"Retry-After": "1"})
            if self._total + amount > self.whole:
                limit = f"this service holds {self.whole} at once"
                sentence = f"{self._what}: {limit} for all; {amount} more are not free now"
                raise Refusal("busy", sentence, headers={"Retry-After": "1"})
            self._held[owner] = held + amount
            self._total += amount

    def _give_back(self, owner: str, amount: int) -> None:
        with self._lock:
            self._total -= amount
            left = self._held.pop(owner, 0) - amount
            if left > 0:
                self._held[owner] = left


class Share:
    """An owner's share of one of the API's quotas, held until it is closed."""

    def __init__(self, shares: Shares, owner: str) -> None:
        self._shares, self._owner = shares, owner
        self.amount = 0

    def grow(self, amount: int) -> None:
        """Grow an owner's share of the quota, or refuse as `Shares.take` does and leave it unchanged."""
        self._shares._add(self._owner, amount)
        self.amount += amount

    def fits(self, amount: int) -> bool:
        """Grow an owner's share of the quota if that much is free; returns whether it did."""
        try:
            self.grow(amount)
        except Refusal:
            return False
        return True

    def shrink(self, amount: int) -> None:
        """Give a part of an owner's share back to the quota."""
        self.amount -= amount
        self._shares._give_back(self._owner, amount)

    def close(self) -> None:
        """Give an owner's whole share back to the quota. A second call does nothing."""
        self.shrink(self.amount)

    def __enter__(self) -> "Share":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def network(address: str) -> str:
    """The network that counts as one sender for the API's rate limits: an IPv4 address, or the /64 of an IPv6 line."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]  # of a unix socket, say
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return address
