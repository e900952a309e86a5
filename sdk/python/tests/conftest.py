"""Fixtures: clients and sandboxes of a real farm, a proxy that can break connections, a fake farm, a fake clock."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from proxy import Proxy
from sandfarm import Client, Sandbox


def pytest_configure() -> None:
    """Fails without a farm: tests must not be skipped."""
    if not os.environ.get("SANDFARM_URL"):
        raise pytest.UsageError("SANDFARM_URL is not set: start a farm, or run `make test RUN=TestPythonSDK`")


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    with Client() as made:
        yield made


@pytest.fixture(scope="session")
def shared(client: Client) -> Iterator[Sandbox]:
    """One sandbox for all tests that do not change it."""
    with Sandbox(client=client, ttl=900, labels={"made-by": "sdk-tests"}) as box:
        yield box


@pytest.fixture(scope="module")
def box(client: Client) -> Iterator[Sandbox]:
    """A sandbox for tests that stop, restart or fill it: one for each file."""
    with Sandbox(client=client, ttl=600, labels={"made-by": "sdk-tests"}) as made:
        yield made


@pytest.fixture
def proxy(client: Client) -> Iterator[Proxy]:
    with Proxy(client.url) as made:
        yield made


Answer = tuple[int, dict[str, str], Any]
Farm = Callable[[str, str, dict[str, str], bytes], Answer]


class Fake:
    """A fake farm. A function maps method, path, headers and body to status, headers and JSON or bytes."""

    def __init__(self, answer: Farm) -> None:
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                headers = {name.lower(): value for name, value in self.headers.items()}
                seen.append((self.command, self.path, headers, body))
                status, more, content = answer(self.command, self.path, headers, body)
                if status == 0:  # hang up
                    self.close_connection = True
                    self.connection.close()
                    return
                raw = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                if "Content-Length" not in more:
                    self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = handle_any  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # closing connections is intended
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def fake() -> Iterator[Callable[[Farm], Fake]]:
    made: list[Fake] = []

    def make(answer: Farm) -> Fake:
        made.append(Fake(answer))
        return made[-1]

    yield make
    for farm in made:
        farm.close()


@pytest.fixture
def unique() -> str:
    return uuid.uuid4().hex


class Clock:
    """Replaces the clock of the blocking client. Sleeping takes no time and is recorded."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._now = 1000.0
        self.time = time.time

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("_http", "_io", "_jobs"):
        monkeypatch.setattr(f"sandfarm.{module}.time", made)
    return made
