"""All files of a real sandbox."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from sandfarm import AsyncClient, Client, ConflictError, FileChange, InvalidError, NotFoundError, Sandbox


def test_files_anywhere(shared: Sandbox) -> None:
    fs, at = shared.fs, f"/tmp/{uuid.uuid4().hex}"
    made = fs.write(f"{at}/dir with space/ü.txt", "one", mode=0o600)
    assert (made.path, made.size, made.mode, made.type, made.target) == (f"{at}/dir with space/ü.txt", 3, "0600", "file", None)
    assert made.uid > 0
    assert fs.write(made.path, " two", append=True).size == 7
    assert fs.write(made.path, b"ONE", offset=0).size == 7
    assert fs.read_text(made.path) == "ONE two"
    assert fs.chmod(made.path, 0o755).mode == "0755"
    assert fs.copy(f"{at}/dir with space", f"{at}/copy").is_dir
    assert fs.move(f"{at}/copy", f"{at}/moved").path == f"{at}/moved"
    assert fs.symlink(f"{at}/link", "moved/ü.txt").target == "moved/ü.txt"
    assert fs.read(f"{at}/link") == b"ONE two"
    assert fs.mkdir(f"{at}/a/b").is_dir
    names = [e.path.removeprefix(at) for e in fs.list(at, depth=2)]
    assert names == ["/a", "/a/b", "/dir with space", "/dir with space/ü.txt", "/link", "/moved", "/moved/ü.txt"]
    fs.remove(at)
    assert not fs.exists(at)
    assert fs.stat("/etc/passwd").uid == 0
    assert b"agent" in fs.read("/proc/self/status"), "it is not the agent itself that reads, but its program for files"
    for missing in (fs.read, fs.stat, fs.remove, fs.list):
        with pytest.raises(NotFoundError):
            missing(at)
    with pytest.raises(InvalidError, match="EACCES"):
        fs.read("/proc/1/environ")
    with pytest.raises(InvalidError, match="EROFS"):
        fs.write("/etc/passwd", "x")


def test_conditions(shared: Sandbox) -> None:
    path = f"conditions-{uuid.uuid4().hex}"
    first = shared.fs.write(path, "1", new=True)
    with pytest.raises(ConflictError):
        shared.fs.write(path, "2", new=True)
    shared.fs.write(path, "2", if_match=first.etag)
    with pytest.raises(ConflictError):
        shared.fs.write(path, "3", if_match=first.etag)
    assert shared.files.read_text(path) == "2", "a relative path is one in the workspace"


def test_watch(shared: Sandbox) -> None:
    at = f"watched-{uuid.uuid4().hex}"
    shared.fs.mkdir(f"{at}/sub")
    seen: list[FileChange] = []
    for change in shared.fs.watch(at, ignore=["*.tmp"]):
        if change.kind == "ready":
            assert change.directories == 2
            write = f"open('{at}/x.tmp', 'w'); open('{at}/sub/f', 'w').write('1')"
            shared.run(f"import os; {write}; os.rename('{at}/sub/f', '{at}/g')")
        seen.append(change)
        if change.kind == "renamed":
            break
    assert (seen[-1].path, seen[-1].from_) == (f"/workspace/{at}/g", f"/workspace/{at}/sub/f")
    assert not [c for c in seen if c.path.endswith(".tmp")]
    again = shared.fs.watch(at, ignore=["*.tmp"], after=seen[1].id)
    assert next(iter(again)) == seen[2], "a watch goes on after the change that is named"


def test_watch_with_asyncio(client: Client, shared: Sandbox) -> None:
    at = f"watched-{uuid.uuid4().hex}"
    shared.fs.mkdir(at)

    async def use() -> FileChange:
        async with AsyncClient(client.url) as other:
            box = other.sandbox(shared.id)
            async for change in box.files.watch(at):
                if change.kind == "ready":
                    await box.fs.write(f"{at}/f", "x")
                else:
                    return change
        raise AssertionError("the watch ended")

    change = asyncio.run(use())
    assert (change.kind, change.path, change.type) == ("created", f"/workspace/{at}/f", "file")
