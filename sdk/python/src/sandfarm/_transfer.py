"""Files of any size between here and the farm, without holding them in memory."""

from __future__ import annotations

import os
import tarfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import httpx

from ._http import MAX_RECONNECTS, backoff
from ._io import IO, Chunks
from ._progress import Line
from .errors import InternalError, InvalidError, UnavailableError
from .models import Progress

CHUNK = 256 << 10

# What a project has that is not its own.
LEFT_OUT = frozenset({".git", "__pycache__", "node_modules", ".venv", "venv", ".mypy_cache", ".ruff_cache", ".pytest_cache"})

Open = Callable[[int], Awaitable[httpx.Response]]


def clean(path: str) -> str:
    """A path in the workspace, without dots.

    Raises:
        InvalidError: it leads out of the workspace.
    """
    out: list[str] = []
    for part in str(path).split("/"):
        if part == "..":
            if not out:
                raise InvalidError(f"{path!r} leads out of the workspace")
            out.pop()
        elif part not in {"", "."}:
            out.append(part)
    if out[:1] == ["workspace"] and str(path).startswith("/"):
        out = out[1:]
    elif str(path).startswith("/"):
        raise InvalidError(f"{path!r} leads out of the workspace: give a path relative to it, or below /workspace")
    return "/".join(out)


def chunks_of(source: bytes | Path, line: Line | None = None) -> tuple[Chunks, int]:
    """The content of a file, to be sent any number of times, and its size."""
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
                    line.update(Progress(_mib(done, size), done, size))
                yield chunk

    return read, size


def tar_of(folder: Path, target: BinaryIO) -> None:
    """Packs a folder, without what `LEFT_OUT` names and without what is neither file, directory nor link."""

    def keep(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if LEFT_OUT.intersection(PurePosixPath(member.name).parts) or not (member.isreg() or member.isdir() or member.issym()):
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT, dereference=False) as tar:
        for entry in sorted(folder.iterdir()):
            tar.add(entry, arcname=entry.name, filter=keep)


async def save(io: IO, open_at: Open, path: str | os.PathLike[str] | None, name: str, line: Line) -> Path:
    """Writes what `open_at` opens to a file here, going on behind what has arrived where the connection breaks.

    `path` may name a directory; without one the file goes to the current directory. It appears under its name when it is
    whole, or not at all.
    """
    target = Path(path) if path is not None else Path()
    if target.is_dir():
        leaf = PurePosixPath(name).name
        if leaf in {"", ".", ".."} or "\\" in leaf or "\0" in leaf:
            raise InvalidError(f"{name!r} is no name for a file here: give the path of a file")
        target /= leaf
    part = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as file:

            async def write(chunk: bytes) -> None:
                await io.blocking(lambda: file.write(chunk))

            await _pull(io, open_at, write, line)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return target


async def whole(io: IO, open_at: Open) -> bytes:
    """What `open_at` opens, in memory, going on behind what has arrived where the connection breaks."""
    chunks: list[bytes] = []

    async def add(chunk: bytes) -> None:
        chunks.append(chunk)

    await _pull(io, open_at, add, Line("", enabled=False))
    return b"".join(chunks)


async def _pull(io: IO, open_at: Open, take: Callable[[bytes], Awaitable[None]], line: Line) -> None:
    done, attempt, total = 0, 0, -1
    while True:
        before = done
        cause: Exception | None = None
        response = await open_at(done)
        try:
            if done and response.status_code == 200:
                raise InternalError("the farm sent the whole file instead of the rest of it")
            length = response.headers.get("Content-Length", "")
            total = done + int(length) if length.isdigit() else -1
            async with aclosing(io.chunks(response)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    await take(chunk)
                    done += len(chunk)
                    line.update(Progress(_mib(done, total), done, max(total, 0)))
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


def _mib(done: int, total: int) -> str:
    return f"{done / (1 << 20):.1f}" + (f" of {total / (1 << 20):.1f}" if total >= 0 else "") + " MiB"
