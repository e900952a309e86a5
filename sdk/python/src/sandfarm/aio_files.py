"""The workspace, artifacts and packages of one sandbox, for asyncio."""

from __future__ import annotations

import builtins
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import Any

import httpx

from . import _bodies
from . import _decode as d
from ._handle import Handle
from ._http import Call
from ._jobs import Callbacks, decode_job
from ._transfer import chunks_of, content_of, read_all, save, tar_of, workspace_path
from .aio_fs import AsyncFS
from .errors import InternalError, InvalidError, NotFoundError, error_from_job
from .models import NEVER, Artifact, FileChange, FileEntry, Job, Package, Progress
from .results import InstallResult

_RAW = {"Accept": "*/*", "Accept-Encoding": "identity"}  # not compressed


class AsyncFiles:
    """The workspace. Every method is the awaitable form of the one in `Files`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def list(self, path: str = "", *, recursive: bool = False) -> list[FileEntry]:
        """See `Files.list`."""
        query = [("path", workspace_path(path)), ("recursive", "true" if recursive else "false")]
        entries: builtins.list[FileEntry] = []
        cursor: str | None = None
        while True:
            page = query if cursor is None else [*query, ("cursor", cursor)]
            listing = await self._handle.http.json(Call("GET", await self._at(), query=page, wait=-1), "items")
            entries += d.tuple_of(FileEntry)(listing["items"])
            following = listing.get("next_cursor")
            if not following or following == cursor:
                return entries
            cursor = following

    async def stat(self, path: str) -> FileEntry:
        """See `Files.stat`."""
        path = workspace_path(path)
        response = await self._handle.http.open(Call("HEAD", await self._at(path), wait=-1))
        await self._handle.http.io.release(response)
        headers = response.headers
        modified = headers.get("Last-Modified")
        modified_at: datetime = parsedate_to_datetime(modified).astimezone(timezone.utc) if modified else NEVER
        size = int(headers.get("Content-Length") or 0)
        return FileEntry(path, size, headers.get("X-File-Mode", ""), modified_at, headers.get("X-File-Type", "file"))

    async def exists(self, path: str) -> bool:
        """See `Files.exists`."""
        try:
            await self.stat(path)
        except NotFoundError:
            return False
        return True

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `Files.read`."""
        if length is not None and length <= 0:
            return b""
        at, first = await self._at(workspace_path(path)), offset
        last = offset + length - 1 if length and offset >= 0 else ""

        async def open_at(done: int) -> httpx.Response:
            nonlocal first
            headers = dict(_RAW)
            if first + done or last != "":
                headers["Range"] = f"bytes={first}" if first < 0 else f"bytes={first + done}-{last}"
            response = await self._handle.http.open(Call("GET", at, headers=headers, wait=-1))
            if first < 0:  # remember the position, in case the read must resume
                position = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
                first = int(position[1]) if position else 0
            return response

        try:
            content = await read_all(self._handle.http.io, open_at)
        except InvalidError as error:
            if error.status == 416:  # the offset is behind the end
                return b""
            raise
        return content[:length] if offset < 0 else content

    async def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """See `Files.read_text`."""
        return (await self.read(path)).decode(encoding, errors)

    async def write(self, path: str, content: str | bytes | bytearray | memoryview) -> FileEntry:
        """See `Files.write`."""
        return await self._put(workspace_path(path), content_of(content))

    async def upload(self, local: str | os.PathLike[str], path: str | None = None) -> builtins.list[FileEntry]:
        """See `Files.upload`."""
        source = Path(local)
        if source.is_dir():
            return await self._upload_folder(source, workspace_path(path or ""))
        target = workspace_path(path) if path else ""
        if not target or (path or "").endswith("/"):
            target = f"{target}/{source.name}".lstrip("/")
        return [await self._put(target, source)]

    async def download(self, path: str, local: str | os.PathLike[str] | None = None) -> Path:
        """See `Files.download`."""
        path = workspace_path(path)
        at = await self._at(path)

        async def open_at(offset: int) -> httpx.Response:
            headers = _RAW | ({"Range": f"bytes={offset}-"} if offset else {})
            return await self._handle.http.open(Call("GET", at, headers=headers, wait=-1))

        with self._handle.jobs.progress_line(f"downloading {path}") as line:
            return await save(self._handle.http.io, open_at, local, PurePosixPath(path).name, line, trusted=True)

    async def remove(self, path: str) -> None:
        """See `Files.remove`."""
        path = workspace_path(path)
        if not path:
            raise InvalidError("path is empty: pass the path of a file in the workspace")
        await self._change(Call("DELETE", await self._at(path), wait=-1))

    async def move(self, source: str, target: str) -> FileEntry:
        """See `Files.move`."""
        body = {"from": workspace_path(source), "to": workspace_path(target)}
        return await self._change(Call("POST", (*await self._at(), "move"), body=body, wait=-1))

    async def mkdir(self, path: str) -> FileEntry:
        """See `Files.mkdir`."""
        return await self._change(Call("PUT", (*await self._at(workspace_path(path)), ""), wait=-1))

    async def watch(
        self, path: str = "", *, recursive: bool = True, ignore: Sequence[str] = (), after: str = ""
    ) -> AsyncIterator[FileChange]:
        """See `FS.watch`."""
        changes = AsyncFS(self._handle).watch(path, recursive=recursive, ignore=ignore, after=after)
        async with aclosing(changes) as changes:  # type: ignore[type-var]
            async for change in changes:
                yield change

    async def url(self, path: str) -> str:
        """See `Files.url`."""
        return await self._handle.http.link(Call("GET", await self._at(workspace_path(path)), query=[("link", "1")], wait=-1))

    async def _put(self, path: str, source: bytes | Path) -> FileEntry:
        if not path:
            raise InvalidError("path is empty: pass the path of a file in the workspace")
        with self._handle.jobs.progress_line(f"uploading {path}") as line:
            chunks, size = chunks_of(source, line)
            headers = {"Content-Type": "application/octet-stream"}
            return await self._change(Call("PUT", await self._at(path), headers=headers, content=chunks, length=size, wait=-1))

    async def _upload_folder(self, folder: Path, under: str) -> builtins.list[FileEntry]:
        io = self._handle.http.io
        with tempfile.TemporaryDirectory() as scratch, self._handle.jobs.progress_line(f"uploading {folder.name}") as line:
            packed = Path(scratch) / "project.tar"

            def pack() -> None:
                with packed.open("wb") as file:
                    tar_of(folder, file)

            await io.blocking(pack)
            chunks, size = chunks_of(packed, line)
            query = [("path", under)] if under else []
            headers = {"Content-Type": "application/x-tar"}
            call = Call("POST", await self._at(), query=query, headers=headers, content=chunks, length=size, wait=-1)
            answer = await self._complete(call)
        entries = answer.get("items") or answer.get("entries") or ()
        return list(d.tuple_of(FileEntry)(entries))

    async def _change(self, call: Call) -> FileEntry:
        answer = await self._complete(call)
        entries = answer.get("entries")
        entry = d.build(FileEntry, entries[0] if entries else answer)
        if not entry.path and call.method != "DELETE":
            raise InternalError("the answer has no file and is not from a Sandfarm: check SANDFARM_URL")
        return entry

    async def _complete(self, call: Call) -> dict[str, Any]:
        """Makes a request that changes files. If the farm answers with a job, waits for it."""
        response, answer = await self._handle.http.answer(call)
        if response.status_code != 202:
            return answer if isinstance(answer, dict) else {}
        job = await self._handle.jobs.wait(decode_job(answer).id)
        if job.state != "completed":
            raise error_from_job(job)
        return job.result if isinstance(job.result, dict) else {}

    async def _at(self, path: str = "") -> tuple[str, ...]:
        return await self._handle.path("files", *(path.split("/") if path else ()))


class AsyncArtifacts:
    """The files that the jobs of one sandbox created. Every method is the awaitable form of the one in `Artifacts`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def list(self, *, job: Job | str | None = None) -> list[Artifact]:
        """See `Artifacts.list`."""
        sandbox_id = await self._handle.last_id()
        return [artifact async for artifact in self._handle.farm.artifacts(sandbox_id=sandbox_id, job=job)]

    async def save(self, artifact: Artifact | str, path: str | os.PathLike[str] | None = None) -> Path:
        """See `Artifacts.save`."""
        return await self._handle.farm.save_artifact(artifact, path)

    async def read(self, artifact: Artifact | str) -> bytes:
        """See `Artifacts.read`."""
        return await self._handle.farm.read_artifact(artifact)

    async def url(self, artifact: Artifact | str) -> str:
        """See `Artifacts.url`."""
        return await self._handle.farm.artifact_url(artifact)

    async def delete(self, artifact: Artifact | str) -> None:
        """See `Artifacts.delete`."""
        await self._handle.farm.delete_artifact(artifact)


class AsyncPackages:
    """The packages of one sandbox. Every method is the awaitable form of the one in `Packages`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def install(
        self,
        *packages: str | Sequence[str],
        manager: str | None = None,
        timeout: int | None = None,
        on_progress: Callable[[Progress], Any] | None = None,
        wait_timeout: float | None = None,
        idempotency_key: str | None = None,
        check: bool = True,
    ) -> InstallResult:
        """See `Packages.install`."""
        requirements = _bodies.flatten(packages)
        job = await self._handle.jobs.perform(
            await self._call(requirements, manager, timeout, None),
            title=f"installing {' '.join(requirements)}",
            callbacks=Callbacks(progress=on_progress),
            wait_timeout=wait_timeout,
            key=idempotency_key,
        )
        result: InstallResult = job.result
        return result.check() if check else result

    async def start(
        self,
        *packages: str | Sequence[str],
        manager: str | None = None,
        timeout: int | None = None,
        callback_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """See `Packages.start`."""
        call = await self._call(_bodies.flatten(packages), manager, timeout, callback_url, idempotency_key or "")
        return await self._handle.jobs.start(call)

    async def status(self, name: str, *, manager: str | None = None) -> Package:
        """See `Packages.status`."""
        query = [("manager", manager)] if manager else []
        call = Call("GET", await self._handle.path("packages", name), query=query)
        return d.build(Package, await self._handle.http.json(call, "status"))

    async def list(self) -> list[Package]:
        """See `Packages.list`."""
        call = Call("GET", await self._handle.path("packages"))
        listing = await self._handle.http.json(call, "items")
        return list(d.tuple_of(Package)(listing["items"]))

    async def _call(
        self, packages: Sequence[str], manager: str | None, timeout: int | None, callback_url: str | None, key: str = ""
    ) -> Call:
        body = _bodies.compact(packages=packages, manager=manager, timeout_seconds=timeout, callback_url=callback_url)
        return Call("POST", await self._handle.path("packages"), body=body, key=key)
