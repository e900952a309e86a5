"""What differs between blocking and asynchronous callers: sending, sleeping, locking.

Everything else is written once, as coroutines that use an `IO`. Coroutines that use `SyncIO` never suspend: `finish` runs
them in the caller's thread, without an event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol, TypeVar

import httpx

T = TypeVar("T")

Chunks = Callable[[], Iterator[bytes]]
Content = bytes | Chunks | None
Headers = dict[str, str]

# How long a clean-up may take after the caller gave up. A cancel is one short request.
CLEANUP_SECONDS = 10.0

_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=32)


class IO(Protocol):
    """What the coroutines of this package await."""

    def request(self, method: str, url: str, *, headers: Headers, content: Content, timeout: httpx.Timeout) -> httpx.Request:
        """Builds a request."""

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Sends a request and returns the response with its body unread. The caller must `release` it."""

    async def body(self, response: httpx.Response) -> bytes:
        """Reads the whole body."""

    def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Reads the body in chunks, as they arrive."""

    async def release(self, response: httpx.Response) -> None:
        """Returns the connection of a response to the pool."""

    async def sleep(self, seconds: float) -> None:
        """Sleeps."""

    async def blocking(self, work: Callable[[], T]) -> T:
        """Runs blocking work, such as reading from a disk."""

    async def clean_up(self, work: Coroutine[Any, Any, object]) -> None:
        """Finishes work that must happen even though the caller gave up. Errors are ignored."""

    def lock(self) -> AbstractAsyncContextManager[None]:
        """Makes a lock."""

    async def close(self) -> None:
        """Closes the connections."""


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that uses `SyncIO` and returns its result."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a callback of a blocking call returned an awaitable: use AsyncClient or AsyncSandbox")


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """Iterates over an asynchronous iterator that uses `SyncIO`."""
    try:
        while True:
            try:
                yield finish(_next(items))
            except StopAsyncIteration:
                return
    finally:
        if isinstance(items, AsyncGenerator):
            finish(_await(items.aclose()))


async def _next(items: AsyncIterator[T]) -> T:
    return await items.__anext__()


async def _await(work: Awaitable[T]) -> T:
    return await work


class _ThreadLock:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class _TaskLock:
    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # an asyncio lock belongs to one loop
            self._lock, self._loop = asyncio.Lock(), loop
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class SyncIO:
    """Blocks the caller's thread. Threads and forked processes may share it."""

    def __init__(self, http: httpx.Client | None = None) -> None:
        self._given = http
        self._own: httpx.Client | None = None
        self._end: Callable[[], object] = lambda: None
        self._pid = os.getpid()
        self._parent_http: httpx.Client | None = None
        self._making = threading.Lock()

    @property
    def _http(self) -> httpx.Client:
        """The connections. After `close` new ones are opened: artifacts are readable when their sandbox is gone."""
        if self._given is not None:
            return self._given
        if self._pid != os.getpid():  # two processes on one connection would mix up their requests
            self._parent_http, self._own, self._making, self._pid = self._own, None, threading.Lock(), os.getpid()
        with self._making:
            if self._own is None:
                self._own = httpx.Client(limits=_LIMITS)
                self._end = weakref.finalize(self, _close, self._own, self._pid)  # also when the interpreter exits
            return self._own

    def request(self, method: str, url: str, *, headers: Headers, content: Content, timeout: httpx.Timeout) -> httpx.Request:
        body = content() if callable(content) else content
        return self._http.build_request(method, url, headers=headers, content=body, timeout=timeout)

    async def send(self, request: httpx.Request) -> httpx.Response:
        return self._http.send(request, stream=True, follow_redirects=False)

    async def body(self, response: httpx.Response) -> bytes:
        return response.read()

    async def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        for chunk in response.iter_bytes():
            yield chunk

    async def release(self, response: httpx.Response) -> None:
        response.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 # blocking is the purpose of this class

    async def blocking(self, work: Callable[[], T]) -> T:
        return work()

    async def clean_up(self, work: Coroutine[Any, Any, object]) -> None:
        with suppress(Exception):
            await work

    def lock(self) -> _ThreadLock:
        return _ThreadLock()

    async def close(self) -> None:
        if self._pid == os.getpid():
            with self._making:
                self._own = None
                self._end()


def _close(http: httpx.Client, pid: int) -> None:
    if pid == os.getpid():
        with suppress(Exception):
            http.close()


class AsyncIO:
    """Suspends the caller's task. Connections belong to an event loop; another loop opens new ones."""

    def __init__(self, http: httpx.AsyncClient | None = None) -> None:
        self._given = http
        self._own: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cleanups: set[asyncio.Task[object]] = set()

    @property
    def _http(self) -> httpx.AsyncClient:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        if self._own is None or self._loop is not loop:
            self._own, self._loop = httpx.AsyncClient(limits=_LIMITS), loop
        return self._own

    def request(self, method: str, url: str, *, headers: Headers, content: Content, timeout: httpx.Timeout) -> httpx.Request:
        body = self._threaded(content) if callable(content) else content
        return self._http.build_request(method, url, headers=headers, content=body, timeout=timeout)

    async def _threaded(self, chunks: Chunks) -> AsyncIterator[bytes]:
        source = chunks()
        try:
            while (chunk := await asyncio.to_thread(next, source, b"")) != b"":
                yield chunk
        finally:
            if isinstance(source, Generator):
                source.close()

    async def send(self, request: httpx.Request) -> httpx.Response:
        return await self._http.send(request, stream=True, follow_redirects=False)

    async def body(self, response: httpx.Response) -> bytes:
        return await response.aread()

    async def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        async for chunk in response.aiter_bytes():
            yield chunk

    async def release(self, response: httpx.Response) -> None:
        await response.aclose()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    async def clean_up(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(work)
        self._cleanups.add(task)  # the loop keeps only a weak reference
        task.add_done_callback(self._cleaned_up)
        with suppress(Exception):
            await asyncio.wait_for(asyncio.shield(task), CLEANUP_SECONDS)

    def _cleaned_up(self, task: asyncio.Task[object]) -> None:
        self._cleanups.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved

    def lock(self) -> _TaskLock:
        return _TaskLock()

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        if cleanups := {task for task in self._cleanups if task.get_loop() is loop}:
            await asyncio.wait(cleanups, timeout=CLEANUP_SECONDS)
        own, self._own = self._own, None
        if own is not None and self._loop is loop:
            await own.aclose()
