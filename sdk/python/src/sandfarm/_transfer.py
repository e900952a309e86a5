"""Uploads and downloads of any size, streamed."""

from __future__ import annotations

import os
import tarfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import httpx

from . import _autoload
from ._http import MAX_RECONNECTS, backoff
from ._io import IO, Chunks
from ._progress import ProgressLine
from .errors import InternalError, InvalidError, UnavailableError
from .models import Progress

CHUNK = 256 << 10

# Directories that an upload of a folder excludes.
EXCLUDED = frozenset({".git", "__pycache__", "node_modules", ".venv", "venv", ".mypy_cache", ".ruff_cache", ".pytest_cache"})

# Opens a download at a byte offset.
Open = Callable[[int], Awaitable[httpx.Response]]


def workspace_path(path: str) -> str:
    """A path relative to the workspace, without `.` and `..`.

    Raises:
        InvalidError: it is outside the workspace.
    """
    out: list[str] = []
    for part in str(path).split("/"):
        if part == "..":
            if not out:
                raise InvalidError(f"{path!r} is outside the workspace")
            out.pop()
        elif part not in {"", "."}:
            out.append(part)
    if out[:1] == ["workspace"] and str(path).startswith("/"):
        out = out[1:]
    elif str(path).startswith("/"):
        raise InvalidError(f"{path!r} is outside the workspace: use a relative path, or one below /workspace")
    return "/".join(out)


def content_of(content: str | bytes | bytearray | memoryview) -> bytes:
    """What a caller writes, as bytes: text is UTF-8.

    Raises:
        TypeError: it is neither text nor bytes.
    """
    if isinstance(content, str):
        return content.encode()
    try:
        return bytes(memoryview(content))  # bytes() alone would accept a number
    except TypeError:
        raise TypeError(f"write takes str or bytes, not {type(content).__name__}: json.dumps(...) makes text of data") from None


def chunks_of(source: bytes | Path, line: ProgressLine | None = None) -> tuple[Chunks, int]:
    """The content of a file, which can be read any number of times, and its size."""
    size = len(source) if isinstance(source, bytes) else source.stat().st_size

    def read() -> Iterator[bytes]:
        if isinstance(source, bytes):
            for at in range(0, size, CHUNK):
                yield source[at : at + CHUNK]
            return
        with source.open("rb") as file:
            done = 0
            while done < size and (chunk := file.read(min(CHUNK, size - done))):  # it may have grown
                done += len(chunk)
                if line is not None:
                    line.update(Progress(_megabytes(done, size), done, size))
                yield chunk

    return read, size


def tar_of(folder: Path, target: BinaryIO) -> None:
    """Packs the files, directories and symbolic links of a folder, without the `EXCLUDED` ones."""

    def keep(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if EXCLUDED.intersection(PurePosixPath(member.name).parts) or not (member.isreg() or member.isdir() or member.issym()):
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT, dereference=False) as tar:
        for entry in sorted(folder.iterdir()):
            tar.add(entry, arcname=entry.name, filter=keep)


def local_name(path: str) -> str:
    """The last part of a path in a sandbox, as the name of a local file.

    Raises:
        InvalidError: it cannot be one.
    """
    leaf = PurePosixPath(path).name
    if leaf in {"", ".", ".."} or "\\" in leaf or "\0" in leaf:
        raise InvalidError(f"{path!r} cannot be a local file name: pass the path of a file")
    return leaf


async def save(
    io: IO, open_at: Open, path: str | os.PathLike[str] | None, name: str, line: ProgressLine, *, trusted: bool
) -> Path:
    """Downloads to a local file. When the connection breaks, the download resumes.

    `path` may be a directory; the default is the current one, and the file is called `name` there. The file appears when
    it is complete. A name that is not `trusted` comes from a sandbox: it must not be one that other programs load, and a file
    of that name is kept, so that the new one is called `name-1`.

    Raises:
        InvalidError: `name` cannot be used here.
    """
    target = Path(path) if path is not None else Path()
    chosen = target.is_dir() and not trusted  # by a sandbox
    if target.is_dir():
        leaf = local_name(name)
        if not trusted and (why := _autoload.reason(leaf, target)):
            raise InvalidError(
                f"{leaf!r} is not saved into a directory, because {why}: pass the path of a file to save it anyway"
            )
        target /= leaf
    part = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as file:

            async def write(chunk: bytes) -> None:
                await io.blocking(lambda: file.write(chunk))

            await _download(io, open_at, write, line)
        if chosen:
            target = _place(part, target)
        else:
            part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return target


def _place(part: Path, target: Path) -> Path:
    """Gives a complete file the first free name of `target`, `target-1`, … and returns it."""
    for n in range(10_000):
        free = target.with_name(f"{target.stem}-{n}{target.suffix}") if n else target
        try:
            free.touch(exist_ok=False)  # claims the name: no other file is replaced
        except FileExistsError:
            continue
        part.replace(free)
        return free
    raise InvalidError(f"10000 files called {target.name!r} exist already: pass the path of a file")


async def read_all(io: IO, open_at: Open) -> bytes:
    """Downloads into memory. When the connection breaks, the download resumes."""
    chunks: list[bytes] = []

    async def add(chunk: bytes) -> None:
        chunks.append(chunk)

    await _download(io, open_at, add, ProgressLine("", enabled=False))
    return b"".join(chunks)


async def _download(io: IO, open_at: Open, write: Callable[[bytes], Awaitable[None]], line: ProgressLine) -> None:
    done, attempt, total = 0, 0, -1
    while True:
        before = done
        cause: Exception | None = None
        response = await open_at(done)
        try:
            if done and response.status_code == 200:
                raise InternalError("the farm sent the whole file instead of the requested range")
            length = response.headers.get("Content-Length", "")
            total = done + int(length) if length.isdigit() else -1
            async with aclosing(io.chunks(response)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    await write(chunk)
                    done += len(chunk)
                    line.update(Progress(_megabytes(done, total), done, max(total, 0)))
        except httpx.TransportError as error:
            cause = error
        finally:
            await io.release(response)
        if cause is None and total in {-1, done}:
            return
        attempt = 1 if done > before else attempt + 1
        if attempt >= MAX_RECONNECTS:
            raise UnavailableError(f"the connection broke {attempt} times in a row after {done} bytes") from cause
        await io.sleep(backoff(attempt))


def _megabytes(done: int, total: int) -> str:
    return f"{done / (1 << 20):.1f}" + (f" of {total / (1 << 20):.1f}" if total >= 0 else "") + " MiB"
