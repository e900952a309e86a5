"""Values: how they are read, shown and made harmless."""

from __future__ import annotations

import base64
from datetime import datetime, timezone

import pytest

from sandfarm import Rich
from sandfarm._decode import build, time
from sandfarm._html import safe
from sandfarm._jobs import job_of
from sandfarm._sse import MAX_EVENT_BYTES, Parser
from sandfarm._transfer import clean
from sandfarm.errors import InvalidError
from sandfarm.models import Job, SandboxInfo
from sandfarm.results import CommandResult, ExecuteResult, InstallResult

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()


@pytest.mark.parametrize(
    ("text", "micro"),
    [
        ("2026-11-21T16:42:11.155898178Z", 155898),
        ("2026-11-21T16:42:11.1Z", 100000),
        ("2026-11-21T16:42:11Z", 0),
        ("2026-11-21T18:42:11.5+02:00", 500000),
    ],
)
def test_times(text: str, micro: int) -> None:
    assert time(text) == datetime(2026, 11, 21, 16, 42, 11, micro, tzinfo=timezone.utc)
    with pytest.raises(ValueError, match="RFC 3339"):
        time("yesterday")


def test_unknown_fields_are_left_out_and_missing_ones_have_defaults() -> None:
    info = build(SandboxInfo, {"id": "sbx_1", "new_in_the_next_version": 1, "closed_at": None, "resources": {"cpus": 2}})
    assert (info.id, info.closed_at, info.resources.cpus, info.labels) == ("sbx_1", None, 2, {})
    assert build(Job, None) == Job()


@pytest.mark.parametrize(
    ("kind", "result", "cls"),
    [
        ("execute", {"stdout": "x"}, ExecuteResult),
        ("run", {"stdout": "x"}, ExecuteResult),
        ("command", {"results": []}, CommandResult),
        ("install", {"packages": []}, InstallResult),
        ("create", {"packages": []}, InstallResult),
        ("create", {"notes": []}, dict),
        ("kind of the next version", {"a": 1}, dict),
        ("execute", None, type(None)),
    ],
)
def test_a_job_has_the_result_of_its_kind(kind: str, result: object, cls: type) -> None:
    assert type(job_of({"id": "job_1", "kind": kind, "state": "completed", "result": result}).result) is cls


def test_formats_of_one_value_are_put_together() -> None:
    entries = [
        {"mime": "image/png", "data": PNG},
        {"mime": "text/plain", "data": "<Figure>"},
        {"mime": "text/html", "data": "<b>1</b>"},
        {"mime": "text/plain", "data": "1"},
        {"mime": "text/plain", "data": "2"},
        {"mime": "application/json", "data": "{}"},
        {"mime": "image/png", "url": "http://x/"},
        {"mime": "text/plain", "data": ""},
    ]
    results = build(ExecuteResult, {"results": entries}).results
    assert [r.mimes for r in results] == [
        ("image/png", "text/plain"),
        ("text/html", "text/plain"),
        ("text/plain",),
        ("application/json", "text/plain", "image/png"),
    ]
    assert results[0].png == b"\x89PNG\r\n\x1a\nrest"
    assert dict(results[3].links) == {"image/png": "http://x/"}


def test_the_text_of_a_result() -> None:
    result = build(
        ExecuteResult,
        {
            "stdout": "out\n",
            "results": [{"mime": "text/plain", "data": "42"}],
            "error": {"name": "E", "value": "v", "traceback": ["Traceback", "E: v"]},
        },
    )
    assert str(result) == "out\n42\nTraceback\nE: v"
    assert str(ExecuteResult(stdout="a\n\n")) == "a\n"


def test_what_a_notebook_gets() -> None:
    picture = Rich({"image/png": b"\x89PNG", "text/plain": "<Figure>"})
    assert picture._repr_mimebundle_() == {"image/png": "iVBORw==", "text/plain": "<Figure>"}
    assert picture._repr_mimebundle_(include=["text/plain"]) == {"text/plain": "<Figure>"}
    svg = Rich({"image/svg+xml": "<svg onload='x()'/>", "text/plain": "s"})._repr_mimebundle_()
    assert svg["text/html"].startswith('<img src="data:image/svg+xml;base64,')
    assert "image/svg+xml" not in svg
    script = Rich({"application/javascript": "alert(1)", "text/plain": "js"})
    assert script._repr_mimebundle_() == {"text/plain": "js"}
    whole = ExecuteResult(stdout="<b>&", results=(picture,))._repr_mimebundle_()
    assert whole["text/html"].startswith('<pre style="font-family:monospace">&lt;b&gt;&amp;</pre>\n<img')
    assert ExecuteResult(stdout="| a |\n")._repr_mimebundle_() == {"text/plain": "| a |"}


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("<table border='1'><tr><td>1</td></tr></table>", '<table border="1"><tr><td>1</td></tr></table>'),
        ("<style>td {}</style><p>x", "<p>x</p>"),
        ("<p><b>x</p>y", "<p><b>x</b></p>y"),
        ('<a href="javascript:x()">l</a><a href="https://x/">m</a>', '<a>l</a><a href="https://x/">m</a>'),
        ('<img src="http://tracker/"><img src="data:image/png;base64,AA==">', '<img><img src="data:image/png;base64,AA==">'),
        ("a &lt;script&gt; b & c", "a &lt;script&gt; b &amp; c"),
        ("<p style='background:url(http://x)' class=\"a&quot;b\">x</p>", '<p class="a&quot;b">x</p>'),
        ("</div></div>x", "x"),
        ("<!-- c --><br>", "<br>"),
    ],
)
def test_harmless_html_is_shown(html: str, shown: str) -> None:
    assert safe(html) == shown


@pytest.mark.parametrize(
    "html",
    [
        "<script>x()</script>",
        "<SCRIPT src=x>",
        "<img src=x onerror=x()>",
        "<svg/onload=x()>",
        "<iframe srcdoc='x'>",
        "<form action=x><input>",
        "<p><math><mi//xlink:href=x>",
    ],
)
def test_html_that_runs_is_shown_in_a_frame_of_its_own(html: str) -> None:
    shown = safe(html)
    assert shown.startswith('<iframe sandbox="allow-scripts" ')
    assert "allow-same-origin" not in shown
    assert shown.count("<") == 2, "all of it is one attribute"


def test_events_are_the_same_however_they_arrive() -> None:
    stream = (
        'id: 1\r\nevent: stdout\r\ndata: {"text": "ü"}\r\n\r\n: beat\n\n'
        "id: 2\ndata: a\ndata:b\n\nid: \0\ndata: c\n\ndata: cut off"
    ).encode()
    whole = Parser().feed(stream)
    assert [(f.id, f.name, f.data) for f in whole] == [("1", "stdout", '{"text": "ü"}'), ("2", "", "a\nb"), ("2", "", "c")]
    for size in range(1, 20):
        parser = Parser()
        assert [f for at in range(0, len(stream), size) for f in parser.feed(stream[at : at + size])] == whole
    endless = Parser()
    for _ in range(MAX_EVENT_BYTES >> 20):
        assert endless.feed(b"x" * (1 << 20)) == []
    with pytest.raises(ValueError, match="longer"):
        endless.feed(b"x")


@pytest.mark.parametrize(
    ("path", "cleaned"),
    [
        ("a/b", "a/b"),
        ("./a//b/", "a/b"),
        ("a/../b", "b"),
        ("", ""),
        ("/workspace/a", "a"),
        ("workspace/a", "workspace/a"),
        ("/workspace", ""),
    ],
)
def test_paths_in_the_workspace(path: str, cleaned: str) -> None:
    assert clean(path) == cleaned


@pytest.mark.parametrize("path", ["..", "a/../..", "/etc", "/workspace/../etc", "/"])
def test_paths_outside(path: str) -> None:
    with pytest.raises(InvalidError):
        clean(path)
