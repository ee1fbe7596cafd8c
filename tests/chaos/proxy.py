"""A port before Redis, whose connections can be cut, left without an answer, slowed, and robbed of single replies.

Silence may be for those of some addresses alone: so servers that each speak from their own lose each other.

It runs in a thread with an event loop of its own. What it does to a connection a network can do to it: nothing is made
up, and nothing is passed on twice or in another order.
"""

import asyncio
import hashlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

Mode = Literal["open", "cut", "silent"]

OPENING = frozenset({"HELLO", "AUTH", "CLIENT", "SELECT"})  # what a client says first on a connection
SILENCE = 0.05  # seconds without another byte from Redis after which a reply that is to be lost has been sent whole
CHUNK = 1 << 16


class Commands:
    """The commands in a stream of requests, as a client of Redis writes them (arrays of bulk strings)."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[list[bytes]]:
        self._pending += data
        while (parsed := self._first()) is not None:
            command, end = parsed
            del self._pending[:end]
            yield command

    def _first(self) -> tuple[list[bytes], int] | None:
        """The first command and where it ends; None where it is not whole yet."""
        line = self._line(0)
        if line is None:
            return None
        count, at = line
        words = []
        for _ in range(count):
            line = self._line(at)
            if line is None or len(self._pending) < line[1] + line[0] + 2:
                return None
            length, begin = line
            words.append(bytes(self._pending[begin : begin + length]))
            at = begin + length + 2
        return words, at

    def _line(self, at: int) -> tuple[int, int] | None:
        """The number in "*N" or "$N", and where the next line begins."""
        end = self._pending.find(b"\r\n", at)
        return None if end < 0 else (int(self._pending[at + 1 : end]), end + 2)


def scripts_of(module: Any) -> dict[str, str]:
    """The names of a module's Lua scripts by the digest that Redis knows them by."""
    return {
        hashlib.sha1(text.encode()).hexdigest(): name  # noqa: S324 (Redis' choice)
        for name, text in vars(module).items()
        if name.isupper() and isinstance(text, str) and "redis.call" in text
    }


class Thief:
    """Which replies are lost: of every kind of command some, at places drawn from a seed.

    Commands are executed all the same. `taken` counts what was lost. How a connection opens is left alone, else most
    of what is lost would be that.
    """

    def __init__(self, seed: int, names: Mapping[str, str], every: int = 8) -> None:
        self.attempts: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._names = names
        self._every = every
        self._next: dict[str, int] = {}

    def name(self, command: list[bytes]) -> str:
        verb = command[0].upper()
        if verb == b"EVAL":
            digest = hashlib.sha1(command[1]).hexdigest()  # noqa: S324
        elif verb == b"EVALSHA":
            digest = command[1].decode()
        else:
            return verb.decode()
        return self._names.get(digest, f"script {digest[:8]}")

    def takes(self, command: list[bytes]) -> bool:
        name = self.name(command)
        if name in OPENING:
            return False
        self.attempts[name] += 1
        if self.attempts[name] < self._next.setdefault(name, self._random.randint(1, self._every)):
            return False
        self._next[name] = self.attempts[name] + self._random.randint(1, 2 * self._every)
        self.taken[name] += 1
        return True


class Proxy:
    """`url` is where its clients connect; `open`, `cut`, `silence` and `slow` change what happens to all of them."""

    def __init__(self, target: Path | tuple[str, int], thief: Thief | None = None, at: str = "127.0.0.1") -> None:
        """`target`: the socket of the server behind it, or its address and port; `at` is its own address."""
        self._at = at
        self._target = target
        self.thief = thief
        self.port = 0
        self._mode: Mode = "open"
        self._delay = 0.0
        self._unheard = frozenset[str]()  # addresses for which it is silent; all where there are none
        self._loop = asyncio.new_event_loop()
        self._changed: asyncio.Event | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy")

    @property
    def url(self) -> str:
        return f"redis://{self._at}:{self.port}/0"

    def open(self) -> None:
        """Everything passes again, what was held back included."""
        self._set("open", 0.0)

    def cut(self) -> None:
        """Every connection ends, and no other begins."""
        self._set("cut", 0.0)

    def silence(self, *addresses: str) -> None:
        """Connections stay and nothing comes through any of them, as where a cable was pulled; or of those from some
        addresses."""
        self._set("silent", 0.0, frozenset(addresses))

    def slow(self, seconds: float) -> None:
        """Each piece waits so long, both ways."""
        self._set("open", seconds)

    def robbed(self, thief: Thief | None) -> None:
        """From now on this one takes replies; every connection begins anew, at the first of its commands."""
        self.cut()
        self.thief = thief
        self.open()

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> "Proxy":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _set(self, mode: Mode, delay: float, unheard: frozenset[str] = frozenset()) -> None:
        def change() -> None:
            self._mode, self._delay, self._unheard = mode, delay, unheard
            if self._changed is not None:
                self._changed.set()
            self._changed = asyncio.Event()
            if mode == "cut":
                for link in self._links:
                    link.cancel()

        self._done(change)

    def _done(self, change: Callable[[], None]) -> None:
        """Call it in the loop, and return when it has been called."""
        called = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (change(), called.set()))
        called.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._link, self._at, self.port))
        self.port = server.sockets[0].getsockname()[1]
        self._changed = asyncio.Event()
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for link in self._links:
            link.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._links, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            if self._mode != "cut":
                await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(task)
            writer.transport.abort()  # what is cut is not ended in good order

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source = str(writer.get_extra_info("peername")[0])
        await self._passable(reader, source)
        if isinstance(self._target, Path):
            back, forth = await asyncio.open_unix_connection(str(self._target))
        else:
            back, forth = await asyncio.open_connection(*self._target)
        stolen = asyncio.Event()
        try:
            await _first_of(
                self._requests(reader, forth, stolen, source),
                self._replies(back, writer, reader, stolen, source),
            )
        finally:
            forth.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, forth: asyncio.StreamWriter, stolen: asyncio.Event, source: str
    ) -> None:
        commands = Commands()
        while data := await reader.read(CHUNK):
            thief = self.thief
            # Before it is passed on: the reply may come at once.
            if thief is not None and [command for command in commands.feed(data) if thief.takes(command)]:
                stolen.set()
            await self._passable(reader, source)
            forth.write(data)
            await forth.drain()

    async def _replies(
        self,
        back: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        reader: asyncio.StreamReader,
        stolen: asyncio.Event,
        source: str,
    ) -> None:
        while data := await back.read(CHUNK):
            if stolen.is_set():
                with suppress(TimeoutError):
                    while await asyncio.wait_for(back.read(CHUNK), SILENCE):
                        pass
                return
            await self._passable(reader, source)
            writer.write(data)
            await writer.drain()

    async def _passable(self, reader: asyncio.StreamReader, source: str) -> None:
        """Wait out the delay and the silence. What a client that has gone meanwhile had sent never arrives."""
        if self._delay:
            await asyncio.sleep(self._delay)
        if not self._silent(source):
            return
        while self._silent(source):
            assert self._changed is not None
            await self._changed.wait()
        if reader.at_eof() or reader.exception() is not None:
            raise ConnectionResetError

    def _silent(self, source: str) -> bool:
        return self._mode == "silent" and (not self._unheard or source in self._unheard)


async def _first_of(*sides: Coroutine[Any, Any, None]) -> None:
    """Run them until one ends, and end the others."""
    tasks = [asyncio.create_task(side) for side in sides]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
