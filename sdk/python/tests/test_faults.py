"""Faults between the client and the farm: it is down, busy, cut off in mid-stream, or not a Sandfarm."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conftest import Clock, Fake
from proxy import Proxy
from sandfarm import (
    Client,
    ExhaustedError,
    InternalError,
    NotFoundError,
    Rich,
    Sandbox,
    SandfarmError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
)

Make = Callable[[Callable[[str, str, dict[str, str], bytes], tuple[int, dict[str, str], Any]]], Fake]

DONE = {"id": "job_1", "kind": "run", "state": "completed", "result": {"stdout": "ok\n", "exit_code": 0, "results": []}}


def problem(status: int, code: str, **headers: str) -> tuple[int, dict[str, str], Any]:
    body = {"title": "T", "status": status, "detail": f"It is {code}.", "code": code, "request_id": "req_1"}
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, body


def test_a_farm_that_is_down(unique: str, clock: Clock) -> None:
    with Proxy("http://127.0.0.1:9") as nobody:
        url = nobody.url
    with Client(url, unique, retries=3) as client, pytest.raises(UnavailableError) as raised:
        client.run("1")
    assert url in str(raised.value)
    assert "SANDFARM_URL" in str(raised.value)
    assert unique not in str(raised.value)
    assert raised.value.code == "unavailable"
    assert len(clock.pauses) == 3, "one before each retry"


def test_a_refused_key_names_its_variable(fake: Make) -> None:
    served = fake(lambda *_: problem(401, "unauthorized"))
    with Client(served.url, "wrong") as client, pytest.raises(UnauthorizedError, match="Set SANDFARM_API_KEY, or pass api_key"):
        client.limits()


@pytest.mark.parametrize(
    ("method", "fault", "requests"),
    [
        ("get", "hang up", 3),
        ("get", "503", 3),
        ("get", "429", 3),
        ("get", "500", 1),
        ("get", "503 later", 1),
        ("post", "hang up", 3),
        ("post", "503", 3),
        ("post", "429", 3),
        ("put", "hang up", 3),
        ("put", "429", 3),
        ("delete", "hang up", 1),
        ("delete", "503", 1),
        ("delete", "429", 3),
    ],
)
def test_what_is_retried(fake: Make, method: str, fault: str, requests: int) -> None:
    count = itertools.count(1)

    def farm(*_: object) -> tuple[int, dict[str, str], Any]:
        if next(count) < 3:
            return {
                "hang up": (0, {}, b""),
                "500": problem(500, "internal"),
                "503": problem(503, "unavailable"),
                "503 later": problem(503, "unavailable", Retry_After="3600"),
                "429": problem(429, "exhausted", Retry_After="0"),
            }[fault]
        return 200, {}, DONE | {"path": "a"}

    served = fake(farm)
    with Client(served.url, "key", retries=3) as client:
        use: dict[str, Callable[[], object]] = {
            "get": lambda: client.job("job_1"),
            "post": lambda: client.run("1"),
            "put": lambda: client.sandbox("sbx_1").files.write("a", b"content"),
            "delete": lambda: client.cancel("job_1"),
        }
        if requests == 3:
            use[method]()
        else:
            with pytest.raises(SandfarmError):
                use[method]()
    assert len(served.seen) == requests
    keys = {headers.get("idempotency-key") for _, _, headers, _ in served.seen}
    assert len(keys) == 1, "a retry has the same Idempotency-Key"
    assert (keys != {None}) == (method == "post")
    assert {body for _, _, _, body in served.seen} == {served.seen[0][3]}
    assert served.seen[0][2]["authorization"] == "Bearer key"


def test_retry_after_is_respected_and_reported(fake: Make, clock: Clock) -> None:
    count = itertools.count(1)
    served = fake(lambda *_: problem(429, "exhausted", Retry_After="17") if next(count) == 1 else (200, {}, DONE))
    with Client(served.url) as client:
        assert client.run("1").stdout == "ok\n"
    assert clock.pauses == [17]
    busy = fake(lambda *_: problem(429, "exhausted", Retry_After="90"))
    with Client(busy.url, max_pause=2) as client, pytest.raises(ExhaustedError) as raised:
        client.run("1")
    assert raised.value.retry_after == 90
    assert len(busy.seen) == 1
    assert str(raised.value) == "It is exhausted (exhausted, HTTP 429)"


def test_a_quota_that_is_too_small_is_not_asked_again(fake: Make) -> None:
    served = fake(
        lambda *_: (
            429,
            {},
            {"code": "exhausted", "detail": "never", "quota": {"name": "max_memory_mb", "limit": 1024, "used": 0}},
        )
    )
    with Client(served.url, retries=3) as client, pytest.raises(ExhaustedError):
        client.run("1")
    assert len(served.seen) == 1


@pytest.mark.parametrize(
    ("status", "content", "kind"),
    [
        (413, b"<html>proxy</html>", TooLargeError),
        (404, b"", NotFoundError),
        (500, b"\xff\xfe", InternalError),
        (418, b"[]", SandfarmError),
        (200, b"<html>", InternalError),
    ],
)
def test_errors_that_are_not_from_a_sandfarm(fake: Make, status: int, content: bytes, kind: type[SandfarmError]) -> None:
    served = fake(lambda *_: (status, {}, content))
    with Client(served.url, retries=0) as client, pytest.raises(kind, match="not from a Sandfarm") as raised:
        client.job("job_1")
    assert served.url in str(raised.value)


def test_a_farm_that_does_not_answer(fake: Make) -> None:
    quiet = threading.Event()

    def farm(*_: object) -> tuple[int, dict[str, str], Any]:
        quiet.wait(30)
        return 0, {}, b""

    served = fake(farm)
    try:
        with Client(served.url, timeout=0.3) as client, pytest.raises(UnavailableError, match="in time"):
            client.limits()
        assert len(served.seen) == 1
    finally:
        quiet.set()


def test_a_stream_of_events_resumes_where_it_broke(fake: Make) -> None:
    events = [("1-0", "stdout", {"text": "a"}), ("2-0", "stdout", {"text": "b"}), ("3-0", "state", {"state": "completed"})]

    def farm(method: str, path: str, headers: dict[str, str], _: bytes) -> tuple[int, dict[str, str], Any]:
        if not path.endswith("/events"):
            return 200, {}, DONE
        after = headers.get("last-event-id", "")
        left = [event for event in events if event[0] > after][:1]  # one for each connection
        text = "".join(f": hello\n\nid: {i}\nevent: {n}\ndata: {json.dumps(d)}\n\nid: 9-9\ndata: {{" for i, n, d in left)
        return 200, {"Content-Type": "text/event-stream"}, text.encode()

    served = fake(farm)
    out: list[str] = []
    with Client(served.url) as client:
        assert client.run("1", on_stdout=out.append).stdout == "ok\n"
    assert out == ["a", "b"]
    assert [h.get("last-event-id") for _, p, h, _ in served.seen if p.endswith("/events")] == [None, "1-0", "2-0"]


def test_a_value_that_arrives_in_pieces_is_one_value(fake: Make) -> None:
    entries = [("image/png", "AAAA"), ("text/html", "x" * (1 << 20)), ("text/plain", "y")]
    events = [("display", {"display": 0, "mime": mime, "data": data}) for mime, data in entries]
    frames = [*events, ("state", {"state": "completed"})]
    text = "".join(f"id: {n}-0\nevent: {name}\ndata: {json.dumps(data)}\n\n" for n, (name, data) in enumerate(frames))

    def farm(method: str, path: str, *_: object) -> tuple[int, dict[str, str], Any]:
        if path.endswith("/events"):
            return 200, {"Content-Type": "text/event-stream"}, text.encode()
        return 200, {}, DONE

    shown: list[Rich] = []
    with Client(fake(farm).url) as client:
        client.run("1", on_result=shown.append)
    assert [value.mimes for value in shown] == [("image/png", "text/html", "text/plain")]


def test_updates_and_clears_are_called_in_order(fake: Make) -> None:
    def value(text: str, **more: object) -> tuple[str, dict[str, Any]]:
        return "display", {"display": 0, "mime": "text/plain", "data": text, **more}

    frames = [
        ("stdout", {"text": "a"}),
        value("1"),
        value("2", update=True),
        ("clear", {"wait": True}),
        ("stdout", {"text": "b"}),
    ]
    frames += [("clear", {"wait": False}), ("state", {"state": "completed"})]
    text = "".join(f"id: {n}-0\nevent: {name}\ndata: {json.dumps(data)}\n\n" for n, (name, data) in enumerate(frames))

    def farm(method: str, path: str, *_: object) -> tuple[int, dict[str, str], Any]:
        if path.endswith("/events"):
            return 200, {"Content-Type": "text/event-stream"}, text.encode()
        return 200, {}, DONE

    seen: list[object] = []
    with Client(fake(farm).url) as client:
        box = client.sandbox("sbx_1")
        for run in (client.run, box.run):
            seen.clear()
            run("1", on_stdout=seen.append, on_result=lambda v: seen.append((v.text, v.update)), on_clear=seen.append)
            assert seen == ["a", ("1", False), ("2", True), True, "b", False]
        seen.clear()
        box.run("1", on_clear=seen.append)  # it is enough for following the events
    assert seen == [True, False]


def test_a_stream_without_events_is_given_up(fake: Make) -> None:
    served = fake(lambda *_: (200, {"Content-Type": "text/event-stream"}, b": hello\n\n"))
    with Client(served.url) as client, pytest.raises(UnavailableError, match="8 times"):
        list(client.events("job_1"))


def test_a_connection_that_breaks_in_mid_run(box: Sandbox, proxy: Proxy) -> None:
    """All output arrives, and none of it twice, although connections break."""
    out: list[str] = []

    def stdout(text: str) -> None:
        out.append(text)
        if len(out) in {3, 6}:
            proxy.cut()

    with Client(proxy.url) as client:
        attached = client.sandbox(box.id)
        result = attached.run("import time\nfor n in range(12): print(n, flush=True); time.sleep(.05)", on_stdout=stdout)
    assert "".join(out) == result.stdout == "".join(f"{n}\n" for n in range(12))
    assert proxy.connections >= 3


def test_a_wait_that_breaks_runs_nothing_twice(box: Sandbox, proxy: Proxy) -> None:
    box.run("runs = 0")
    with Client(proxy.url) as client, ThreadPoolExecutor(1) as threads:
        running = threads.submit(client.sandbox(box.id).run, "import time\nruns += 1; time.sleep(1.5); print(runs)")
        while not any(job.state == "running" for job in box.jobs()):
            assert not running.done()
        proxy.cut()
        assert running.result(120).stdout == "1\n"
    assert box.run("runs").results[0].text == "1"


def test_a_wait_survives_a_short_outage(box: Sandbox, proxy: Proxy) -> None:
    job = box.submit("import time; time.sleep(3); print('there')")
    with Client(proxy.url) as client, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.wait, job)
        while not proxy.connections:
            assert not waiting.done()
        proxy.refusing = True
        proxy.cut()
        threading.Timer(1.0, setattr, (proxy, "refusing", False)).start()
        assert waiting.result(120).result.stdout == "there\n"


def test_every_page_of_a_listing_is_read(fake: Make) -> None:
    def entry(path: str) -> dict[str, Any]:
        return {"path": path, "size": 0, "mode": "0644", "modified_at": "2026-01-01T00:00:00Z", "type": "file"}

    def farm(_method: str, path: str, *_: Any) -> tuple[int, dict[str, str], Any]:
        if "cursor=Yg" in path:
            return 200, {}, {"items": [entry("c")], "next_cursor": None, "note": ""}
        return 200, {}, {"items": [entry("a"), entry("b")], "next_cursor": "Yg", "note": ""}

    served = fake(farm)
    with Client(served.url) as client:
        assert [e.path for e in client.sandbox("sbx_1").files.list(recursive=True)] == ["a", "b", "c"]
    assert len(served.seen) == 2
