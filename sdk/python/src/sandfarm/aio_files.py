"""The workspace, artifacts and packages of one sandbox, for asyncio."""

from __future__ import annotations

import builtins
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import httpx

from . import _bodies
from . import _decode as d
from ._http import Call, Http
from ._jobs import Watch, job_of
from ._transfer import chunks_of, clean, save, tar_of, whole
from .errors import InternalError, InvalidError, NotFoundError, of_job
from .models import NEVER, Artifact, FileEntry, Job, Package, Progress
from .results import InstallResult

if TYPE_CHECKING:
    from .aio_sandbox import AsyncSandbox

_BYTES = {"Accept": "*/*", "Accept-Encoding": "identity"}  # byte for byte


class AsyncFiles:
    """The workspace. Every method is that of the same name in `Files`, to be awaited; see there."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box

    async def list(self, path: str = "", *, recursive: bool = False) -> list[FileEntry]:
        """See `Files.list`."""
        query = [("path", clean(path)), ("recursive", "true" if recursive else "false")]
        found = await self._http.json(Call("GET", await self._at(), query=query, wait=-1), "items")
        return list(d.many(FileEntry)(found["items"]))

    async def stat(self, path: str) -> FileEntry:
        """See `Files.stat`."""
        path = clean(path)
        response = await self._http.open(Call("HEAD", await self._at(path), wait=-1))
        await self._http.io.release(response)
        headers = response.headers
        changed = headers.get("Last-Modified")
        at: datetime = parsedate_to_datetime(changed).astimezone(timezone.utc) if changed else NEVER
        size = int(headers.get("Content-Length") or 0)
        return FileEntry(path, size, headers.get("X-File-Mode", ""), at, headers.get("X-File-Type", "file"))

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
        at, first = await self._at(clean(path)), offset
        last = offset + length - 1 if length and offset >= 0 else ""

        async def open_at(done: int) -> httpx.Response:
            nonlocal first
            headers = dict(_BYTES)
            if first + done or last != "":
                headers["Range"] = f"bytes={first}" if first < 0 else f"bytes={first + done}-{last}"
            response = await self._http.open(Call("GET", at, headers=headers, wait=-1))
            if first < 0:  # where that is, in case that it has to go on
                found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
                first = int(found[1]) if found else 0
            return response

        try:
            content = await whole(self._http.io, open_at)
        except InvalidError as error:
            if error.status == 416:  # nothing is behind the end
                return b""
            raise
        return content[:length] if offset < 0 else content

    async def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """See `Files.read_text`."""
        return (await self.read(path)).decode(encoding, errors)

    async def write(self, path: str, content: str | bytes | bytearray | memoryview) -> FileEntry:
        """See `Files.write`."""
        return await self._put(clean(path), content.encode() if isinstance(content, str) else bytes(memoryview(content)))

    async def upload(self, local: str | os.PathLike[str], path: str | None = None) -> builtins.list[FileEntry]:
        """See `Files.upload`."""
        source = Path(local)
        if source.is_dir():
            return await self._upload_folder(source, clean(path or ""))
        target = clean(path) if path else ""
        if not target or (path or "").endswith("/"):
            target = f"{target}/{source.name}".lstrip("/")
        return [await self._put(target, source)]

    async def download(self, path: str, local: str | os.PathLike[str] | None = None) -> Path:
        """See `Files.download`."""
        path = clean(path)
        at = await self._at(path)

        async def open_at(offset: int) -> httpx.Response:
            headers = _BYTES | ({"Range": f"bytes={offset}-"} if offset else {})
            return await self._http.open(Call("GET", at, headers=headers, wait=-1))

        with self._box._jobs.line(f"downloading {path}") as line:
            return await save(self._http.io, open_at, local, PurePosixPath(path).name, line)

    async def remove(self, path: str) -> None:
        """See `Files.remove`."""
        path = clean(path)
        if not path:
            raise InvalidError("path is empty: name a file in the workspace")
        await self._changed(Call("DELETE", await self._at(path), wait=-1))

    async def move(self, source: str, target: str) -> FileEntry:
        """See `Files.move`."""
        body = {"from": clean(source), "to": clean(target)}
        return await self._changed(Call("POST", (*await self._at(), "move"), body=body, wait=-1))

    async def mkdir(self, path: str) -> FileEntry:
        """See `Files.mkdir`."""
        return await self._changed(Call("PUT", (*await self._at(clean(path)), ""), wait=-1))

    async def url(self, path: str) -> str:
        """See `Files.url`."""
        return await self._http.link(Call("GET", await self._at(clean(path)), query=[("link", "1")], wait=-1))

    async def _put(self, path: str, source: bytes | Path) -> FileEntry:
        if not path:
            raise InvalidError("path is empty: name a file in the workspace")
        with self._box._jobs.line(f"uploading {path}") as line:
            chunks, size = chunks_of(source, line)
            headers = {"Content-Type": "application/octet-stream"}
            return await self._changed(Call("PUT", await self._at(path), headers=headers, content=chunks, length=size, wait=-1))

    async def _upload_folder(self, folder: Path, under: str) -> builtins.list[FileEntry]:
        io = self._http.io
        with tempfile.TemporaryDirectory() as scratch, self._box._jobs.line(f"uploading {folder.name}") as line:
            packed = Path(scratch) / "project.tar"

            def pack() -> None:
                with packed.open("wb") as file:
                    tar_of(folder, file)

            await io.blocking(pack)
            chunks, size = chunks_of(packed, line)
            query = [("path", under)] if under else []
            headers = {"Content-Type": "application/x-tar"}
            call = Call("POST", await self._at(), query=query, headers=headers, content=chunks, length=size, wait=-1)
            answer = await self._done(call)
        entries = answer.get("items") or answer.get("entries") or ()
        return list(d.many(FileEntry)(entries))

    async def _changed(self, call: Call) -> FileEntry:
        answer = await self._done(call)
        entries = answer.get("entries")
        entry = d.build(FileEntry, entries[0] if entries else answer)
        if not entry.path and call.method != "DELETE":
            raise InternalError("the answer is no Sandfarm's: it has no file. Is SANDFARM_URL right?")
        return entry

    async def _done(self, call: Call) -> dict[str, Any]:
        """Makes a request that changes files. Where it takes longer than the farm holds the answer, its job is waited for."""
        response, answer = await self._http.answer(call)
        if response.status_code != 202:
            return answer if isinstance(answer, dict) else {}
        job = await self._box._jobs.wait(job_of(answer).id)
        if job.state != "completed":
            raise of_job(job)
        return job.result if isinstance(job.result, dict) else {}

    @property
    def _http(self) -> Http:
        return self._box._client._http

    async def _at(self, path: str = "") -> tuple[str, ...]:
        return ("v1", "sandboxes", await self._box._started(), "files", *(path.split("/") if path else ()))


class AsyncArtifacts:
    """The files that the jobs of one sandbox made. Every method is that of the same name in `Artifacts`; see there."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box

    async def list(self, *, job: Job | str | None = None) -> list[Artifact]:
        """See `Artifacts.list`."""
        box = await self._box._started()
        return [artifact async for artifact in self._box._client.artifacts(sandbox_id=box, job=job)]

    async def save(self, artifact: Artifact | str, path: str | os.PathLike[str] | None = None) -> Path:
        """See `Artifacts.save`."""
        return await self._box._client.save_artifact(artifact, path)

    async def read(self, artifact: Artifact | str) -> bytes:
        """See `Artifacts.read`."""
        return await self._box._client.read_artifact(artifact)

    async def url(self, artifact: Artifact | str) -> str:
        """See `Artifacts.url`."""
        return await self._box._client.artifact_url(artifact)


class AsyncPackages:
    """The packages of one sandbox. Every method is that of the same name in `Packages`, to be awaited; see there."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box

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
        wanted = _bodies.flat(packages)
        job = await self._box._jobs.perform(
            await self._call(wanted, manager, timeout, None),
            title=f"installing {' '.join(wanted)}",
            watch=Watch(progress=on_progress),
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
        call = await self._call(_bodies.flat(packages), manager, timeout, callback_url, idempotency_key or "")
        return await self._box._jobs.start(call)

    async def status(self, name: str, *, manager: str | None = None) -> Package:
        """See `Packages.status`."""
        query = [("manager", manager)] if manager else []
        call = Call("GET", ("v1", "sandboxes", await self._box._started(), "packages", name), query=query)
        return d.build(Package, await self._box._client._http.json(call, "status"))

    async def list(self) -> list[Package]:
        """See `Packages.list`."""
        call = Call("GET", ("v1", "sandboxes", await self._box._started(), "packages"))
        found = await self._box._client._http.json(call, "items")
        return list(d.many(Package)(found["items"]))

    async def _call(
        self, packages: Sequence[str], manager: str | None, timeout: int | None, callback_url: str | None, key: str = ""
    ) -> Call:
        body = _bodies.compact(packages=packages, manager=manager, timeout_seconds=timeout, callback_url=callback_url)
        return Call("POST", ("v1", "sandboxes", await self._box._started(), "packages"), body=body, key=key)
