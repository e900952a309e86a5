"""What a user at a terminal sees: the progress line, and Ctrl-C."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import threading

import pytest

from sandfarm import Client, Progress, Sandbox
from sandfarm._jobs import Callbacks
from sandfarm._progress import ProgressLine

# Runs code in an existing sandbox. Arguments: the sandbox, the code, and anything to use callbacks.
PROGRAM = """
import sys
from sandfarm import Sandbox
box = Sandbox(id=sys.argv[1])
on = (lambda text: print(text, end="", flush=True)) if sys.argv[3:] else None
try:
    print(box.run(sys.argv[2], on_stdout=on).stdout, end="")
except KeyboardInterrupt:
    print("interrupted")
"""


def at_terminal(box: Sandbox, code: str) -> tuple[str, str]:
    """What the program writes to standard output and to standard error. The latter is a terminal."""
    near, far = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, box.id, code],
            stdout=subprocess.PIPE,
            stderr=far,
            env={**os.environ, "TERM": "xterm"},
        ) as process:
            os.close(far)
            shown: list[bytes] = []

            def read() -> None:
                try:
                    while piece := os.read(near, 4096):
                        shown.append(piece)
                except OSError:  # the other end is closed
                    pass

            reader = threading.Thread(target=read)
            reader.start()
            out = process.communicate(timeout=120)[0].decode()
            reader.join(20)
            return out, b"".join(shown).decode()
    finally:
        os.close(near)


def test_a_long_wait_draws_a_line_and_removes_it(shared: Sandbox) -> None:
    out, shown = at_terminal(shared, "import time; time.sleep(2.5); print('done')")
    assert out == "done\n"
    assert "running" in shown
    assert shown.endswith("\r\x1b[K"), "the line is erased"


def test_a_short_wait_draws_nothing() -> None:
    stream = io.StringIO()
    with ProgressLine("waiting", enabled=True, stream=stream, delay=600):
        pass
    assert stream.getvalue() == ""


def test_without_a_terminal_nothing_is_drawn(shared: Sandbox) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, shared.id, "import time; time.sleep(1.5); print('done')"],
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"done\n", b"")


@pytest.mark.parametrize("streaming", [False, True])
def test_ctrl_c_cancels_the_job(shared: Sandbox, unique: str, streaming: bool) -> None:
    code = f"print({unique!r}, flush=True)\nimport time\ntime.sleep(600)"
    before = {job.id for job in shared.jobs()}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, shared.id, code, *(["on"] if streaming else [])], stdout=subprocess.PIPE
    ) as process:
        mine = None
        while mine is None:
            assert process.poll() is None
            mine = next((job for job in shared.jobs(state="running") if job.id not in before), None)
        process.send_signal(signal.SIGINT)
        out = process.communicate(timeout=120)[0].decode()
    assert out.endswith("interrupted\n")
    assert shared.wait(mine, timeout=60).state == "canceled"


def test_the_text_of_the_line() -> None:
    line = ProgressLine("uploading", enabled=False)
    assert line.text(3.2, 200) == "⠹ uploading 3 s"
    line.update(Progress("1.0 of 4.0\n MiB", 1, 4))
    assert line.text(0, 200) == "⠋ uploading [██████··················]  25% 1.0 of 4.0 MiB 0 s"
    line.update(Progress("", 9, 4))
    assert "100%" in line.text(0, 200)
    assert len(line.text(0, 20)) == 19
    assert ProgressLine("downloading a\x1b]0;b\u202e", enabled=False).text(0, 200) == "⠋ downloading a]0;b 0 s"
    assert not ProgressLine("x", stream=io.StringIO()).enabled


def test_callbacks_disable_the_line(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandfarm._progress.is_terminal", lambda _: True)
    jobs = client._async._jobs
    assert jobs.progress_line("running", Callbacks()).enabled
    for name in ("stdout", "stderr", "result", "artifact", "progress"):
        assert not jobs.progress_line("running", Callbacks(**{name: print})).enabled


def test_a_closed_terminal_is_ignored() -> None:
    stream = io.StringIO()
    with ProgressLine("waiting", enabled=True, stream=stream, delay=0):
        stream.close()
