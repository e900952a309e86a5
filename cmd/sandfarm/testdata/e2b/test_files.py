"""Files, directories and watches."""

import hashlib
import os

import httpx
import pytest
from e2b import AuthenticationException, FileType, InvalidArgumentException, NotFoundException


def test_write_and_read(sandbox):
    written = sandbox.files.write("notes/today.txt", "grün")
    assert (written.name, written.path) == ("today.txt", "/home/user/notes/today.txt")
    assert sandbox.files.read("notes/today.txt") == sandbox.files.read("/home/user/notes/today.txt") == sandbox.files.read("/workspace/notes/today.txt") == "grün"
    assert sandbox.files.write("/tmp/elsewhere", b"\x00\xff").path == "/tmp/elsewhere"
    assert bytes(sandbox.files.read("/tmp/elsewhere", format="bytes")) == b"\x00\xff"
    sandbox.files.write("notes/today.txt", "short")  # what was longer is gone
    assert sandbox.files.read("notes/today.txt") == "short"
    sandbox.files.write("empty", "")
    assert sandbox.files.read("empty") == ""
    many = sandbox.files.write_files([{"path": "many/one", "data": "1"}, {"path": "many/ä b", "data": b"2"}])
    assert [w.path for w in many] == ["/home/user/many/one", "/home/user/many/ä b"]
    assert sandbox.files.read("many/ä b") == "2"
    assert sandbox.commands.run("cat notes/today.txt").stdout == "short"


def test_a_big_file(sandbox):
    content = os.urandom(1 << 20) * 24
    sandbox.files.write("big", content)
    assert sandbox.commands.run("sha256sum < big").stdout.split()[0] == hashlib.sha256(content).hexdigest()
    sum = hashlib.sha256()
    for piece in sandbox.files.read("big", format="stream"):
        sum.update(piece)
    assert sum.hexdigest() == hashlib.sha256(content).hexdigest()
    sandbox.files.write("packed", content, gzip=True)
    assert bytes(sandbox.files.read("packed", format="bytes", gzip=True)) == content


def test_list_and_describe(sandbox):
    sandbox.files.write("tree/a/b/c.txt", "abc")
    sandbox.commands.run("ln -s a/b/c.txt tree/link; ln -s nowhere tree/broken; chmod 600 tree/a/b/c.txt")
    assert [(e.name, e.type) for e in sandbox.files.list("tree")] == [("a", FileType.DIR), ("broken", FileType.SYMLINK), ("link", FileType.SYMLINK)]
    deep = [e.path for e in sandbox.files.list("tree/a", depth=5)]
    assert deep == ["/home/user/tree/a/b", "/home/user/tree/a/b/c.txt"]
    info = sandbox.files.get_info("tree/a/b/c.txt")
    assert (info.size, info.mode, info.permissions, info.owner, info.group, info.type) == (3, 0o600, "-rw-------", "user", "user", FileType.FILE)
    assert sandbox.files.get_info("tree").size > 0
    assert sandbox.files.get_info("tree/link").symlink_target == "/home/user/tree/a/b/c.txt"
    assert sandbox.files.get_info("/etc/passwd").owner == "root"
    assert sandbox.files.exists("tree") and not sandbox.files.exists("tree/none")


def test_change(sandbox):
    assert sandbox.files.make_dir("made/deep") and not sandbox.files.make_dir("made/deep")
    sandbox.files.write("made/deep/x", "x")
    assert sandbox.files.rename("made/deep/x", "made/y").path == "/home/user/made/y"
    assert sandbox.files.read("made/y") == "x"
    sandbox.files.remove("made")
    assert not sandbox.files.exists("made")
    sandbox.files.remove("made")


def test_watch(sandbox):
    sandbox.files.make_dir("seen/below")
    with pytest.raises(NotFoundException):
        sandbox.files.watch_dir("unseen")
    for recursive in (False, True):
        watch = sandbox.files.watch_dir("seen", recursive=recursive)
        sandbox.files.write("seen/new", "x")
        sandbox.files.rename("seen/new", "seen/named")
        sandbox.commands.run("chmod 600 seen/named")
        sandbox.files.write("seen/below/deep", "x")
        sandbox.files.remove("seen/below/deep")
        sandbox.files.remove("seen/named")
        got = []
        for _ in range(200):
            got += [(e.name, e.type.value) for e in watch.get_new_events()]
            if ("named", "remove") in got:
                break
        assert got[:3] == [("new", "create"), ("new", "chmod"), ("new", "write")], got
        for want in [("new", "rename"), ("named", "create"), ("named", "chmod"), ("named", "remove")]:
            assert want in got, got
        assert (("below/deep", "create") in got) == recursive, got
        watch.stop()
        with pytest.raises(Exception):
            watch.get_new_events()


def test_errors(sandbox):
    for call in (sandbox.files.read, sandbox.files.get_info, sandbox.files.list):
        with pytest.raises(NotFoundException):
            call("no/such/file")
    sandbox.files.make_dir("directory")
    sandbox.files.write("file", "x")
    for call in (
        lambda: sandbox.files.read("directory"),
        lambda: sandbox.files.write("directory", "x"),
        lambda: sandbox.files.list("file"),
        lambda: sandbox.files.watch_dir("file"),
        lambda: sandbox.files.make_dir("file"),
        lambda: sandbox.files.write("/etc/passwd", "x"),
    ):
        with pytest.raises(InvalidArgumentException):
            call()
    with pytest.raises(AuthenticationException):
        sandbox.files.read("file", user="root")


def test_metadata(sandbox):
    written = sandbox.files.write("labelled.txt", "x", metadata={"Author": "me"})
    assert written.metadata == {"author": "me"} == sandbox.files.get_info("labelled.txt").metadata
    assert sandbox.files.write("labelled.txt", "y").metadata is None
    with pytest.raises(InvalidArgumentException):
        sandbox.files.write("labelled.txt", "z", metadata={"long": "v" * 1025})
    assert sandbox.files.read("labelled.txt") == "y"


def test_home_is_the_workspace(sandbox):
    """Code that was written for E2B has /home/user in its paths."""
    sandbox.files.write("/home/user/table.csv", "a,b\n1,2\n")
    shown = sandbox.commands.run("pwd; cat /home/user/table.csv; cat table.csv; mkdir -p below; cd below; pwd; cd /tmp; pwd")
    assert shown.stdout == "/home/user\n" + "a,b\n1,2\n" * 2 + "/home/user/below\n/tmp\n"
    assert sandbox.commands.run("pwd", cwd="/home/user/below").stdout == "/home/user/below\n"
    sandbox.commands.run("echo x > /home/user/made.txt")
    assert sandbox.files.read("made.txt") == "x\n"


def test_signed_urls(sandbox):
    sandbox.files.write("a b/é.txt", "content")
    for url in (sandbox.download_url("a b/é.txt"), sandbox.download_url("/home/user/a b/é.txt", user="user", use_signature_expiration=600)):
        assert httpx.get(url).text == "content"
    answer = httpx.get(sandbox.download_url("a b/é.txt", use_signature_expiration=-10))
    assert (answer.status_code, answer.json()) == (401, {"code": 401, "message": "signature is already expired"})
    assert httpx.get(sandbox.download_url("a b/é.txt").replace("a%20b", "b")).status_code == 401
    assert httpx.post(sandbox.upload_url("sent.txt"), files={"file": ("ignored", b"sent")}).status_code == 200
    assert sandbox.files.read("sent.txt") == "sent"
