"""Commands and terminals."""

import pytest
from e2b import CommandExitException, InvalidArgumentException, NotFoundException, PtySize, TimeoutException
from e2b.exceptions import AuthenticationException


def test_run(sandbox):
    done = sandbox.commands.run("echo out; echo problem >&2; pwd", envs={"A": "1"})
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n/home/user\n", "problem\n", 0)
    assert sandbox.commands.run("echo $A-$B", envs={"A": "1", "B": "2"}).stdout == "1-2\n"
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    sandbox.files.make_dir("below")
    assert sandbox.commands.run("pwd", cwd="below").stdout == sandbox.commands.run("pwd", cwd="/home/user/below").stdout == "/home/user/below\n"
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo before; exit 7")
    assert failed.value.exit_code == 7 and failed.value.stdout == "before\n"


def test_output_comes_while_it_runs(sandbox):
    out, errors = [], []
    handle = sandbox.commands.run("echo one; echo two >&2; read line; echo got $line", background=True, stdin=True)
    assert handle.pid in [p.pid for p in sandbox.commands.list()]
    for stdout, stderr, _ in handle:
        out.append(stdout or "")
        errors.append(stderr or "")
        if "".join(out) == "one\n" and "".join(errors) == "two\n":
            sandbox.commands.send_stdin(handle.pid, "this\n")
    assert "".join(out) == "one\ngot this\n" and "".join(errors) == "two\n"


def test_much_output(sandbox):
    done = sandbox.commands.run("seq 300000")
    assert done.stdout == "".join(f"{n}\n" for n in range(1, 300001))
    raw = sandbox.commands.run("printf '\\303\\251%.0s' $(seq 100000)")
    assert raw.stdout == "é" * 100000


def test_close_stdin(sandbox):
    handle = sandbox.commands.run("cat; echo over", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "last")
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "lastover\n"


def test_kill(sandbox):
    handle = sandbox.commands.run("sleep 100", background=True)
    assert handle.kill()
    with pytest.raises(CommandExitException):
        handle.wait()
    assert not sandbox.commands.kill(handle.pid)
    assert not sandbox.commands.kill(999_999)


def test_connect(sandbox):
    handle = sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, "me\n")
    assert again.wait().stdout == "got me\n"
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999_999)


def test_timeout_ends_the_process(sandbox):
    with pytest.raises(TimeoutException):
        sandbox.commands.run("echo $$ > pid; exec sleep 100", timeout=1)
    sandbox.commands.run("for n in $(seq 200); do kill -0 $(cat pid) 2>/dev/null || exit 0; sleep 0.05; done; exit 1")


def test_errors(sandbox):
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.run("true", cwd="/no/such/directory")
    for user in ("root", "nobody-here"):
        with pytest.raises(AuthenticationException):
            sandbox.commands.run("true", user=user)
    assert sandbox.commands.run("true", user="user").exit_code == 0


def test_terminal(sandbox):
    out = bytearray()
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), envs={"FRUIT": "apple"}, timeout=60)
    sandbox.pty.resize(terminal.pid, PtySize(rows=31, cols=91))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo $FRUIT-$TERM; exit 3\n")
    with pytest.raises(CommandExitException) as ended:
        terminal.wait(on_pty=out.extend)
    assert ended.value.exit_code == 3
    assert b"31 91" in out and b"apple-xterm-256color" in out
    other = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=60)
    assert sandbox.pty.kill(other.pid) and not sandbox.pty.kill(other.pid)
