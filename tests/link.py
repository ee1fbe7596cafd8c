"""A port before another, perhaps with TLS, that can be down and that can break in the middle of an answer."""

import asyncio
import ssl
import threading
from contextlib import suppress


class Link:
    """Runs in a thread with an event loop of its own, as a context manager; `port` is where clients connect."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None, at: str = "127.0.0.1") -> None:
        self._target = host, port
        self._tls = tls
        self._at = at
        self.port = 0
        self.up = True
        self.break_after: int | None = None  # bytes of answers, then once
        self.broken = 0
        self._loop = asyncio.new_event_loop()
        self._links: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="link")

    def down(self) -> None:
        """Every connection ends, and no other begins until it is up."""
        self.up = False

        def cut() -> None:
            for link in self._links:
                link.cancel()

        self._loop.call_soon_threadsafe(cut)

    def __enter__(self) -> "Link":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._link, self._at, 0, ssl=self._tls))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for link in self._links:
            link.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._links, return_exceptions=True))
        self._loop.close()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            if self.up:
                back, forth = await self._opened()
                sides = {
                    asyncio.create_task(self._pass(reader, forth)),
                    asyncio.create_task(self._pass(back, writer, True)),
                }
                try:
                    await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for side in sides:
                        side.cancel()
                    await asyncio.gather(*sides, return_exceptions=True)
                    forth.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(task)
            writer.transport.abort()

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the target; one that is made while this is canceled is ended."""
        opening = asyncio.create_task(asyncio.open_connection(*self._target))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            with suppress(OSError):
                (await opening)[1].transport.abort()
            raise

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool = False) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if answers and self.break_after is not None:
                    data = data[: self.break_after]
                    self.break_after -= len(data)
                writer.write(data)
                await writer.drain()
                if answers and self.break_after == 0:
                    self.break_after = None
                    self.broken += 1
                    return
