"""A farm that starts again in the middle of something, and what a program does with it meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conftest import Fake
from proxy import Proxy
from sandfarm import Client, CodeError, Sandbox, UnavailableError

Make = Callable[[Callable[[str, str, dict[str, str], bytes], tuple[int, dict[str, str], Any]]], Fake]

# Far more tries than are made in a row without an outage.
AWAY = 3.0


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the pauses between tries short."""
    for module in ("_http", "_jobs"):
        monkeypatch.setattr(f"sandfarm.{module}.backoff", lambda _: 0.01)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("how", ["held", "streamed", "waited for", "events"])
def test_a_job_is_waited_for_while_the_farm_starts_again(box: Sandbox, proxy: Proxy, unique: str, how: str) -> None:
    code = f"ran = globals().get('ran', 0) + 1\nimport time\nprint({unique!r}, flush=True)\ntime.sleep(4)\nprint(ran)\ndel ran"
    box.run("1")
    with Client(proxy.url) as client, ThreadPoolExecutor(1) as threads:
        there = client.sandbox(box.id)
        out: list[str] = []

        def use() -> str:
            if how == "held":
                return there.run(code).stdout
            if how == "streamed":
                assert there.run(code, on_stdout=out.append).stdout == "".join(out)
                return "".join(out)
            job = there.submit(code)
            if how == "waited for":
                return str(there.wait(job).result.stdout)
            return "".join(event.text for event in there.events(job) if event.name == "stdout")

        before = {job.id for job in box.jobs()}
        using = threads.submit(use)
        while not any(job.id not in before and job.state == "running" for job in box.jobs()):
            assert not using.done()
        proxy.refusing = True
        proxy.cut()
        threading.Timer(AWAY, setattr, (proxy, "refusing", False)).start()
        assert using.result(120) == f"{unique}\n1\n", "it ran once, and nothing is lost"


@pytest.mark.usefixtures("hurried")
def test_an_outage_that_is_too_long(box: Sandbox, proxy: Proxy) -> None:
    with Client(proxy.url, outage=1.5) as client, ThreadPoolExecutor(1) as threads:
        running = threads.submit(client.sandbox(box.id).run, "import time; time.sleep(600)")
        while not any(job.state == "running" for job in box.jobs()):
            assert not running.done()
        proxy.refusing = True
        proxy.cut()
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            running.result(60)
        assert time.monotonic() - began >= 1.4
        for use in (lambda: client.wait("job_1"), lambda: list(client.events("job_1"))):
            began = time.monotonic()
            with pytest.raises(UnavailableError):
                use()
            assert time.monotonic() - began >= 1.4
    for job in box.jobs(state="running"):
        box.cancel(job)


def test_what_a_block_raised_is_told_and_not_that_the_farm_is_gone(fake: Make) -> None:
    gone = threading.Event()

    def farm(method: str, *_: object) -> tuple[int, dict[str, str], Any]:
        if method == "DELETE" and gone.is_set():
            return 503, {}, {"code": "unavailable", "detail": "gone"}
        return 200, {}, {"id": "job_1", "kind": "create", "sandbox_id": "sbx_1", "state": "completed"}

    served = fake(farm)
    with Client(served.url) as client:
        gone.set()
        with pytest.raises(LookupError), Sandbox(client=client):
            raise LookupError
        box = client.create()
        with pytest.raises(UnavailableError):
            box.close()
        gone.clear()
        served.seen.clear()
        box.close()
        box.close()
        assert [method for method, *_ in served.seen] == ["DELETE"], "a close that failed is made up for, once"


PROGRAM = """
import os
from sandfarm import Client, Sandbox
client = Client(progress=False)
client.health()
child = os.fork()
client.health()
if child == 0:
    client.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
client.health()
"""


def test_forked_processes_do_not_share_a_connection_and_none_is_left_open(proxy: Proxy) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM],
        env={"SANDFARM_URL": proxy.url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert proxy.connections == 2, "one for each process"


def test_an_error_of_the_callers_own_in_a_callback_is_theirs(fake: Make) -> None:
    seen: list[str] = []
    events = b'id: 1-0\nevent: stdout\ndata: {"text": "a"}\n\n'

    def farm(method: str, path: str, *_: object) -> tuple[int, dict[str, str], Any]:
        seen.append(f"{method} {path.partition('?')[0]}")
        if path.endswith("/events"):
            return 200, {"Content-Type": "text/event-stream"}, events
        return 200, {}, {"id": "job_1", "kind": "run", "state": "running"}

    def fail(_: str) -> None:
        raise CodeError("mine", result=None)  # type: ignore[arg-type]

    with Client(fake(farm).url) as client, pytest.raises(CodeError, match="mine"):
        client.run("1", on_stdout=fail)
    assert seen[-1] == "DELETE /v1/jobs/job_1"
