"""A farm that restarts while a program uses it."""

from __future__ import annotations

import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conftest import Clock, Fake
from proxy import Proxy
from sandfarm import Client, CodeError, Sandbox, UnavailableError

Make = Callable[[Callable[[str, str, dict[str, str], bytes], tuple[int, dict[str, str], Any]]], Fake]

# Long enough for more retries than a client makes in a row without an outage.
OUTAGE_SECONDS = 3.0


@pytest.fixture
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the pauses between retries."""
    for module in ("_http", "_jobs"):
        monkeypatch.setattr(f"sandfarm.{module}.backoff", lambda _: 0.01)


@pytest.mark.usefixtures("short_backoff")
@pytest.mark.parametrize("how", ["held", "streamed", "waited for", "events"])
def test_a_wait_survives_a_restart_of_the_farm(box: Sandbox, proxy: Proxy, unique: str, how: str) -> None:
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
        threading.Timer(OUTAGE_SECONDS, setattr, (proxy, "refusing", False)).start()
        assert using.result(120) == f"{unique}\n1\n", "it ran once, and no output is lost"


@pytest.mark.usefixtures("short_backoff")
def test_an_outage_that_is_too_long(box: Sandbox, proxy: Proxy) -> None:
    with Client(proxy.url, outage=1.5) as client, ThreadPoolExecutor(1) as threads:
        running = threads.submit(client.sandbox(box.id).run, "import time; time.sleep(600)")
        while not any(job.state == "running" for job in box.jobs()):
            assert not running.done()
        proxy.refusing = True
        proxy.cut()
        with pytest.raises(UnavailableError):
            running.result(60)
    for job in box.jobs(state="running"):
        box.cancel(job)


def test_a_wait_lasts_as_long_as_the_outage_setting(proxy: Proxy, clock: Clock) -> None:
    proxy.refusing = True
    with Client(proxy.url, outage=100) as client:
        for use in (lambda: client.wait("job_1"), lambda: list(client.events("job_1"))):
            clock.pauses.clear()
            with pytest.raises(UnavailableError):
                use()
            assert 100 <= sum(clock.pauses) <= 120


def test_the_error_of_a_block_hides_that_the_farm_is_gone(fake: Make) -> None:
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
        assert [method for method, *_ in served.seen] == ["DELETE"], "a failed close is repeated once"


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


def test_forked_processes_do_not_share_connections(proxy: Proxy) -> None:
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


def test_an_error_in_a_callback_is_raised(fake: Make) -> None:
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


def test_an_unreachable_farm_is_one_error() -> None:
    with (
        Client("http://127.0.0.1:9", retries=0) as client,
        pytest.raises(UnavailableError, match=r"SANDFARM_URL is right \(.+\)") as raised,
    ):
        client.limits()
    assert "httpx" not in "".join(traceback.format_exception(raised.type, raised.value, raised.tb))
