"""All files of one sandbox, for asyncio."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import httpx

from . import _decode as d
from ._handle import Handle
from ._http import Call
from ._transfer import chunks_of, content_of, read_all
from .errors import InvalidError, NotFoundError
from .models import FileChange, FileInfo

_RAW = {"Accept": "*/*", "Accept-Encoding": "identity"}  # not compressed


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"/workspace/{path}"


class AsyncFS:
    """All files of one sandbox. Every method is the awaitable form of the one in `FS`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def list(self, path: str = "", *, depth: int = 1) -> builtins.list[FileInfo]:
        """See `FS.list`."""
        query = [("path", path), ("depth", str(depth))]
        entries: builtins.list[FileInfo] = []
        cursor: str | None = None
        while True:
            page = query if cursor is None else [*query, ("cursor", cursor)]
            listing = await self._handle.http.json(Call("GET", await self._handle.path("fs"), query=page), "items")
            entries += d.tuple_of(FileInfo)(listing["items"])
            following = listing.get("next_cursor")
            if not following or following == cursor:
                return entries
            cursor = following

    async def stat(self, path: str) -> FileInfo:
        """See `FS.stat`."""
        return (await self.list(path, depth=0))[0]

    async def exists(self, path: str) -> bool:
        """See `FS.exists`."""
        try:
            await self.stat(path)
        except NotFoundError:
            return False
        return True

    async def read(self, path: str) -> bytes:
        """See `FS.read`."""
        at, version = await self._at(path), ""

        async def open_at(done: int) -> httpx.Response:
            nonlocal version
            headers = dict(_RAW)
            if done:  # of the same version: a download that continues does not mix two
                headers |= {"Range": f"bytes={done}-", "If-Match": version}
            response = await self._handle.http.open(Call("GET", at, headers=headers))
            version = version or response.headers.get("ETag", "")
            return response

        return await read_all(self._handle.http.io, open_at)

    async def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """See `FS.read_text`."""
        return (await self.read(path)).decode(encoding, errors)

    async def write(
        self,
        path: str,
        content: str | bytes | bytearray | memoryview,
        *,
        append: bool = False,
        offset: int | None = None,
        mode: int | None = None,
        if_match: str | None = None,
        new: bool = False,
    ) -> FileInfo:
        """See `FS.write`."""
        raw = content_of(content)
        if path.endswith("/"):
            raise InvalidError(f"{path!r} is a directory: use mkdir")
        query = [("append", "1")] if append else []
        if offset is not None:
            query.append(("offset", str(offset)))
        if mode is not None:
            query.append(("mode", f"{mode:o}"))
        headers = {"Content-Type": "application/octet-stream"}
        if if_match is not None:
            headers["If-Match"] = if_match if if_match == "*" else f'"{if_match}"'
        if new:
            headers["If-None-Match"] = "*"
        chunks, size = chunks_of(raw)
        once = append or new or if_match is not None  # sent twice, it is not the same
        at = await self._at(path)
        return await self._entry(Call("PUT", at, query=query, headers=headers, content=chunks, length=size, once=once))

    async def chmod(self, path: str, mode: int) -> FileInfo:
        """See `FS.chmod`."""
        return await self._entry(Call("PATCH", await self._at(path), body={"mode": f"{mode:o}"}))

    async def copy(self, source: str, target: str) -> FileInfo:
        """See `FS.copy`."""
        return await self._entry(
            Call("POST", await self._handle.path("fs", "copy"), body={"from": source, "to": target}, once=True)
        )

    async def move(self, source: str, target: str) -> FileInfo:
        """See `FS.move`."""
        return await self._entry(
            Call("POST", await self._handle.path("fs", "move"), body={"from": source, "to": target}, once=True)
        )

    async def symlink(self, path: str, target: str) -> FileInfo:
        """See `FS.symlink`."""
        return await self._entry(
            Call("POST", await self._handle.path("fs", "link"), body={"path": path, "target": target}, once=True)
        )

    async def mkdir(self, path: str) -> FileInfo:
        """See `FS.mkdir`."""
        return await self._entry(Call("PUT", (*await self._at(path), "")))

    async def remove(self, path: str) -> None:
        """See `FS.remove`."""
        await self._handle.http.answer(Call("DELETE", await self._at(path)))

    async def watch(
        self, path: str = "", *, recursive: bool = True, ignore: Sequence[str] = (), after: str = ""
    ) -> AsyncIterator[FileChange]:
        """See `FS.watch`."""
        query = [("path", path), ("recursive", "true" if recursive else "false"), *(("ignore", name) for name in ignore)]
        call = Call("GET", await self._handle.path("watch"), query=query)
        async with aclosing(self._handle.http.stream(call, f"the watch of {path or 'the workspace'}", after)) as events:  # type: ignore[type-var]
            async for event in events:
                if event is not None:
                    data: dict[str, Any] = {**event.data, "id": event.id, "kind": event.name}
                    yield d.build(FileChange, data)

    async def _entry(self, call: Call) -> FileInfo:
        return d.build(FileInfo, await self._handle.http.json(call, "path"))

    async def _at(self, path: str) -> tuple[str, ...]:
        parts = _absolute(path).strip("/")
        return await self._handle.path("fs", *(parts.split("/") if parts else ("",)))
