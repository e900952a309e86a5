"""The workspace, artifacts and packages of a real sandbox."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from proxy import Proxy
from sandfarm import Client, InvalidError, JobError, NotFoundError, PackageError, Sandbox

ODD = "dir with space/données 50% #1?;世&+.txt"


@pytest.mark.parametrize("wrong", [{"a": 1}, 5, Path("local.csv")])  # bytes() would accept a number
def test_what_cannot_be_written(wrong: Any) -> None:
    box = Sandbox(id="sbx_1", client=Client("http://127.0.0.1:1"))  # no request is sent
    for write in (box.files.write, box.fs.write):
        with pytest.raises(TypeError, match=rf"^write takes str or bytes, not {type(wrong).__name__}: json\.dumps\(\.\.\.\) "):
            write("wrong", wrong)


@pytest.mark.parametrize("wrong", [[{"path": "a", "content": "1"}], {"a": {"b": 1}}, {"a": 5}])
def test_what_cannot_be_sent_with_a_run(wrong: Any) -> None:
    client = Client("http://127.0.0.1:1")  # no request is sent
    said = r"^files has the content of each path|^files: the content of a is str or bytes, not (dict|int): json"
    with pytest.raises(TypeError, match=said):
        client.run("1", files=wrong)


def test_write_and_read(shared: Sandbox) -> None:
    every = bytes(range(256))
    entry = shared.files.write(ODD, every)
    assert (entry.path, entry.size, entry.type) == (ODD, 256, "file")
    assert shared.files.read(ODD) == every
    assert shared.files.read(ODD, offset=250) == every[250:]
    assert shared.files.read(ODD, offset=10, length=5) == every[10:15]
    assert shared.files.read(ODD, offset=-6) == every[-6:]
    assert shared.files.read(ODD, offset=-6, length=2) == every[-6:-4]
    assert shared.files.read(ODD, offset=256) == b""
    assert shared.files.read(ODD, length=0) == b""
    shared.files.write("t.txt", "grün\n")
    assert shared.files.read_text("/workspace/t.txt") == "grün\n"
    assert shared.files.write("buffer", bytearray(b"ab")).size == 2
    assert shared.files.write("empty", "").size == 0
    assert shared.files.read("empty") == b""


def test_list_stat_move_remove(shared: Sandbox) -> None:
    shared.files.write("tree/a/b.txt", "12345")
    assert shared.files.mkdir("tree/empty").is_dir
    assert {e.path: e.type for e in shared.files.list("tree", recursive=True)} == {
        "tree/a": "dir",
        "tree/a/b.txt": "file",
        "tree/empty": "dir",
    }
    assert [e.path for e in shared.files.list("tree/a")] == ["tree/a/b.txt"]
    assert (shared.files.stat("tree/a/b.txt").size, shared.files.stat("tree").type) == (5, "dir")
    assert shared.files.move("tree/a/b.txt", "tree/c.txt").path == "tree/c.txt"
    assert not shared.files.exists("tree/a/b.txt")
    shared.files.remove("tree")
    assert not shared.files.exists("tree")
    for missing in (shared.files.read, shared.files.stat, shared.files.remove, shared.files.list, shared.files.download):
        with pytest.raises(NotFoundError):
            missing("no/such/file")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", ""])
def test_paths_outside_the_workspace_are_refused(shared: Sandbox, path: str) -> None:
    for use in (shared.files.remove, lambda p: shared.files.write(p, "x")):
        with pytest.raises(InvalidError):
            use(path)
    assert shared.info().open, "a path like ../ does not close the sandbox"


def test_upload_and_download(shared: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = tmp_path / "local.bin"
    local.write_bytes(b"abc")
    assert [e.path for e in shared.files.upload(local)] == ["local.bin"]
    assert [e.path for e in shared.files.upload(local, "in/")] == ["in/local.bin"]
    assert [e.path for e in shared.files.upload(str(local), "in/other.bin")] == ["in/other.bin"]
    monkeypatch.chdir(tmp_path)
    shared.files.write("in/other.bin", b"changed")
    assert shared.files.download("in/other.bin") == Path("other.bin")
    assert Path("other.bin").read_bytes() == b"changed"
    (tmp_path / "to").mkdir()
    assert shared.files.download("in/other.bin", tmp_path / "to").read_bytes() == b"changed"
    assert shared.files.download("in/other.bin", "x.bin").read_bytes() == b"changed"
    with pytest.raises(NotFoundError):
        shared.files.download("nothing", tmp_path / "to" / "nothing")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["local.bin", "other.bin", "other.bin", "to", "x.bin"]


def test_upload_of_a_project(shared: Sandbox, tmp_path: Path) -> None:
    for path, content in {
        "main.py": "print(1)",
        "pkg/mod.py": "x = 1",
        ".git/HEAD": "no",
        "pkg/__pycache__/m.pyc": "no",
    }.items():
        (tmp_path / "project" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / path).write_text(content)
    (tmp_path / "project" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "project" / "run.sh").chmod(0o755)
    (tmp_path / "project" / "empty").mkdir()
    shared.files.upload(tmp_path / "project", "proj")
    assert sorted(e.path for e in shared.files.list("proj", recursive=True)) == [
        "proj/empty",
        "proj/main.py",
        "proj/pkg",
        "proj/pkg/mod.py",
        "proj/run.sh",
    ]
    assert shared.bash("proj/run.sh").stdout == "ran\n"


def test_a_hundred_megabytes_over_a_connection_that_breaks(box: Sandbox, proxy: Proxy, tmp_path: Path) -> None:
    block = os.urandom(1 << 20)
    local = tmp_path / "large.bin"
    with local.open("wb") as file:
        for n in range(100):
            file.write(n.to_bytes(8, "big") + block[8:])
    size = 100 << 20
    with Client(proxy.url, progress=False) as client:
        files = client.sandbox(box.id).files
        assert files.upload(local, "large.bin")[0].size == size
        proxy.limit = 40 << 20  # of each answer
        back = files.download("large.bin", tmp_path / "back.bin")
    assert proxy.cuts == 2
    assert back.stat().st_size == size
    assert _sha256(back) == _sha256(local)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back.bin", "large.bin"]
    box.files.remove("large.bin")


@pytest.mark.parametrize(("offset", "length"), [(0, None), (1000, None), (1000, 2 << 20), (-(5 << 19), None)])
def test_a_read_resumes_where_the_connection_broke(box: Sandbox, proxy: Proxy, offset: int, length: int | None) -> None:
    content = os.urandom(3 << 20)
    box.files.write("read.bin", content)
    proxy.limit = 1 << 20
    with Client(proxy.url) as client:
        got = client.sandbox(box.id).files.read("read.bin", offset=offset, length=length)
    assert got == content[offset:][:length]
    assert proxy.cuts >= 2


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def test_artifacts_outlive_their_sandbox(client: Client, tmp_path: Path) -> None:
    with Sandbox(ttl=300) as box:  # it has a client of its own, which the block closes
        result = box.run("import os; os.mkdir('out'); open('out/täst.csv', 'w').write('a,b\\n')")
        (artifact,) = result.artifacts
        assert (artifact.path, artifact.name, artifact.size) == ("out/täst.csv", "täst.csv", 4)
        assert "Signature" not in repr(artifact), "a link is a secret"
        assert [a.id for a in box.artifacts.list()] == [artifact.id]
        assert [a.id for a in client.artifacts(sandbox_id=box.id, name="täst.csv")] == [artifact.id]
        assert not list(client.artifacts(sandbox_id=box.id, created_before=artifact.created_at - timedelta(minutes=1)))
        assert [a.id for a in box.artifacts.list(job=artifact.job_id)] == [artifact.id]
    assert [a.id for a in box.artifacts.list()] == [artifact.id], "also when the sandbox is closed"
    assert box.artifacts.save(artifact, tmp_path).read_bytes() == b"a,b\n"
    assert (tmp_path / "täst.csv").exists()
    (tmp_path / "täst.csv").write_text("mine")
    assert box.artifacts.save(artifact, tmp_path) == tmp_path / "täst-1.csv", "the sandbox chose the name"
    assert (tmp_path / "täst.csv").read_text() == "mine"
    box.client.close()
    assert client.save_artifact(artifact.id, tmp_path / "named.csv").read_bytes() == b"a,b\n"
    assert client.read_artifact(artifact) == b"a,b\n"
    with urllib.request.urlopen(client.artifact_url(artifact)) as answer:
        assert answer.read() == b"a,b\n"
    box.artifacts.delete(artifact)
    for gone in (artifact, "art_nowhere"):
        with pytest.raises(NotFoundError):
            client.read_artifact(gone)


def test_a_name_that_other_programs_load_needs_a_path(client: Client, shared: Sandbox, tmp_path: Path) -> None:
    (artifact,) = shared.run("open('Makefile', 'w').write('all:'); None").artifacts
    with pytest.raises(InvalidError, match="make runs it"):
        client.save_artifact(artifact, tmp_path)
    assert not list(tmp_path.iterdir())
    assert client.save_artifact(artifact, tmp_path / "Makefile").read_text() == "all:"
    assert shared.files.download("Makefile", tmp_path).read_text() == "all:", "the caller chose this name"
    shared.files.remove("Makefile")


def test_a_link_to_a_file(shared: Sandbox) -> None:
    shared.files.write("linked.txt", "by link")
    with urllib.request.urlopen(shared.files.url("linked.txt")) as answer:
        assert answer.read() == b"by link"


def test_install_and_wait(box: Sandbox) -> None:
    assert (box.run("import humanize").error or pytest.fail("there")).name == "ModuleNotFoundError"
    result = box.packages.install("humanize>=4", ["six", "toolz"])
    assert set(result.versions) == {"humanize", "six", "toolz"}
    assert box.run("import humanize; humanize.intcomma(1234)").results[0].text == "'1,234'"
    assert box.packages.status("Humanize").installed
    assert "pandas" in {p.name for p in box.packages.list() if p.installed}


def test_install_and_poll(box: Sandbox) -> None:
    assert box.packages.status("pyfiglet").status == "not_found"
    job = box.packages.start("pyfiglet")
    states = {box.packages.status("pyfiglet").status}
    while not (job := box.poll(job)).final:
        states.add(box.packages.status("pyfiglet").status)
    assert states <= {"installing", "installed"}
    assert box.packages.status("pyfiglet").installed
    assert job.result.versions.keys() == {"pyfiglet"}


def test_failures_are_reported_for_each_package(box: Sandbox) -> None:
    with pytest.raises(PackageError, match="no-such-package-anywhere") as raised:
        box.packages.install("no-such-package-anywhere", "toolz")
    assert {p.name: p.ok for p in raised.value.result.packages} == {"no-such-package-anywhere": False, "toolz": True}
    assert not box.packages.install("no-such-package-anywhere", check=False).ok
    with pytest.raises(InvalidError):
        box.packages.install("-r/etc/passwd")


def test_a_sandbox_whose_packages_fail_is_closed(client: Client, unique: str) -> None:
    box = Sandbox(client=client, packages="no-such-package-anywhere", labels={"test": unique}, ttl=300)
    with pytest.raises(PackageError, match="no-such-package-anywhere"):
        box.start()
    assert not [found for found in client.sandboxes(labels={"test": unique}) if found.open]


def test_a_job_that_cannot_run_raises(client: Client) -> None:
    with pytest.raises((JobError, InvalidError)) as raised:
        client.run("1", image="no-such-image")
    assert "no-such-image" in str(raised.value)
