"""Processes, terminals and ports of a real sandbox."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from sandfarm import AsyncClient, Client, ConflictError, InvalidError, NotFoundError, Output, Sandbox


def test_a_process_with_an_input(shared: Sandbox) -> None:
    made = shared.processes.start('while read name; do echo "hello $name"; done; exit 3', name="greeter", stdin=True)
    assert (made.info.state, made.info.name, made.info.stdin, made.info.pty) == ("running", "greeter", True, None)
    assert made.write("world\n") == 6
    seen = []
    for piece in made.output():
        seen.append(piece)
        if piece.text == "hello world\n":
            made.write("ü\n", close=True)
    assert "".join(str(piece) for piece in seen) == "hello world\nhello ü\n"
    assert (made.info.exit_code, made.info.running) == (3, False)
    assert [str(piece) for piece in made.output(after=seen[0].id)] == ["hello ü\n"], "the output goes on behind a piece"
    assert made.wait().exit_code == 3
    with pytest.raises(ConflictError):
        made.write("x")
    assert made.id in [p.id for p in shared.processes.list()]
    assert shared.processes.get(made.id).info == made.info
    assert made.end().exit_code == 3
    with pytest.raises(NotFoundError):
        shared.processes.get(made.id)


def test_bytes_and_both_outputs(shared: Sandbox) -> None:
    made = shared.processes.start(["python3", "-c", r"import os; os.write(1, b'\xff\xfe'); os.write(2, b'e')"])
    got = list(made.output())
    assert sorted(got, key=lambda piece: piece.kind) == [Output("stderr", b"e"), Output("stdout", b"\xff\xfe")]


def test_all_processes_and_signals(shared: Sandbox) -> None:
    made = shared.processes.start(["/usr/bin/sleep", "1000"], env={"A": "b"})
    try:
        found = {p.pid: p for p in shared.processes.running()}
        assert (found[made.info.pid].owner, found[made.info.pid].command) == (made.id, "/usr/bin/sleep 1000")
        assert found[made.info.pid].memory_bytes > 0
        with pytest.raises(ConflictError):
            made.resize(80, 24)
        with pytest.raises(InvalidError):
            made.signal("SIGNOT")
        made.signal("SIGTERM")
        assert made.wait().exit_code == 143
    finally:
        made.end()


def test_a_terminal(shared: Sandbox) -> None:
    with pytest.raises(InvalidError):
        shared.terminal(cols=0)
    shell = shared.terminal(cols=100, rows=30)
    assert shell.info.pty is not None
    assert (shell.info.pty.cols, shell.info.pty.rows) == (100, 30)
    assert shell.resize(120, 40).pty is not None
    shell.write("stty size; exit 5\n")
    assert "40 120" in "".join(piece.text for piece in shell.output())
    assert shell.info.exit_code == 5


def test_ports(client: Client, shared: Sandbox) -> None:
    shared.files.write("site/index.html", "<h1>it works</h1>")
    serve = (
        "import http.server as h; s = h.HTTPServer(('127.0.0.1', 8123), h.SimpleHTTPRequestHandler); print('up', flush=True)"
    )
    server = shared.processes.start(["python3", "-c", f"{serve}; s.serve_forever()"], cwd="site")
    try:
        said = ""
        for piece in server.output():
            if (said := said + piece.text).endswith("\n"):
                break
        assert said == "up\n"
        assert [(p.port, p.pid) for p in shared.ports() if p.port == 8123] == [(8123, server.info.pid)]
        port = shared.port(8123)
        key = client._async._http.settings.key
        assert httpx.get(port.url, headers={"Authorization": f"Bearer {key}"}).text == "<h1>it works</h1>"
        link = port.link(expires=60)
        assert link.port == 8123
        assert httpx.get(port.link(path_style=True).url).text == "<h1>it works</h1>"
        with pytest.raises(InvalidError):
            port.link(expires=0)
        with pytest.raises(InvalidError):
            shared.port(65536).link()
    finally:
        server.end()


def test_with_asyncio(client: Client, shared: Sandbox) -> None:
    async def use() -> tuple[str, int | None]:
        async with AsyncClient(client.url) as other:
            box = other.sandbox(shared.id)
            made = await box.processes.start("cat", stdin=True)
            await made.write("one", close=True)
            text = "".join([piece.text async for piece in made.output()])
            shell = await box.terminal("exit 4")
            return text, (await shell.wait()).exit_code

    assert asyncio.run(use()) == ("one", 4)
