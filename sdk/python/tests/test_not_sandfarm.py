"""Invalid addresses and keys, answers that do not come from a Sandfarm, and pickled errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import sandfarm
from conftest import Fake
from sandfarm import Client, ExecuteResult, InternalError, InvalidError, Job, JobTimedOut, SandfarmError
from sandfarm.compat import SandboxClient

Make = Callable[[Callable[[str, str, dict[str, str], bytes], tuple[int, dict[str, str], Any]]], Fake]


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:port", "http://x:99999", "http://u:p@x", "http://x?a=b", "/v1"]
)
def test_invalid_addresses(url: str) -> None:
    for make in (Client, SandboxClient):
        with pytest.raises(InvalidError, match="address"):
            make(url)


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", " \n"])
def test_an_address_with_or_without_v1(end: str, client: Client) -> None:
    with Client(client.url + end) as same:
        assert same.url == client.url
        assert same.limits() == client.limits()
    assert SandboxClient(client.url + end).base_url == client.url


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel", "nul\0"])
def test_an_invalid_key_is_not_in_the_error(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as raised:
        Client(api_key=key)
    assert key not in str(raised.value)


def test_white_space_around_a_key_is_removed(fake: Make) -> None:
    served = fake(lambda *_: (200, {}, {}))
    with Client(served.url, " key\n") as client:
        client.limits()
    assert served.seen[0][2]["authorization"] == "Bearer key"


@pytest.mark.parametrize(
    ("status", "headers", "content"),
    [
        (200, {}, b""),
        (200, {}, b"[]"),
        (200, {}, b'"text"'),
        (200, {}, b'{"hello": "world"}'),
        (200, {}, b"<html>"),
        (200, {"Content-Encoding": "gzip"}, b"no gzip"),
        (301, {"Location": "https://elsewhere.example/"}, b"<html>moved"),
        (302, {"Location": "/login?secret=1"}, b""),
    ],
)
def test_an_answer_that_is_not_from_a_sandfarm(fake: Make, status: int, headers: dict[str, str], content: bytes) -> None:
    served = fake(lambda *_: (status, headers, content))
    with Client(served.url, retries=0) as client:
        box = client.sandbox("sbx_1")
        uses: list[Callable[[], object]] = [
            client.images,
            client.create,
            lambda: client.run("1"),
            lambda: client.run("1", on_stdout=print),
            lambda: client.info("sbx_1"),
            lambda: client.job("job_1"),
            lambda: client.wait("job_1"),
            lambda: client.artifact("art_1"),
            lambda: list(client.sandboxes()),
            lambda: list(client.events("job_1")),
            lambda: client.batch([]),
            lambda: box.files.list(),
            lambda: box.files.write("a", "b"),
            lambda: box.packages.status("six"),
        ]
        for use in uses:
            with pytest.raises(InternalError, match="check") as raised:
                use()
            assert "secret" not in str(raised.value)
    assert len(served.seen) == len(uses)


def test_a_value_that_cannot_be_downloaded_keeps_its_link(fake: Make) -> None:
    def farm(method: str, path: str, *_: object) -> tuple[int, dict[str, str], Any]:
        if path == "/whole":
            return 200, {"Content-Length": "9", "Connection": "close"}, b"cut"
        entry = {"mime": "text/html", "url": served.url + "/whole"}
        return 200, {}, {"id": "job_1", "kind": "run", "state": "completed", "result": {"stdout": "ok", "results": [entry]}}

    served = fake(farm)
    with Client(served.url) as client:
        result = client.run("1")
    assert result.stdout == "ok"
    assert dict(result.results[0].links) == {"text/html": served.url + "/whole"}


KINDS = [kind for kind in vars(sandfarm).values() if isinstance(kind, type) and issubclass(kind, SandfarmError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_errors_can_be_pickled(kind: type[SandfarmError]) -> None:
    more: dict[str, Any] = {}
    if issubclass(kind, (sandfarm.JobError, sandfarm.WaitTimeout)):
        more = {"job": Job(id="job_1", state="timed_out", result=ExecuteResult(stdout="so far\n"))}
    elif issubclass(kind, sandfarm.ResultError) and kind is not sandfarm.ResultError:
        more = {"result": ExecuteResult(stdout="so far\n")}
    error = kind("what is wrong", **more)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert (str(again), vars(again)) == (str(error), vars(error))
    if kind is JobTimedOut:
        assert pickle.loads(pickle.dumps(error)).result.stdout == "so far\n"
