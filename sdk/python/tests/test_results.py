"""Values: decoding, grouping, display in notebooks, safe HTML."""

from __future__ import annotations

import base64
import pickle
import sys
import traceback
import types
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from sandfarm import Rich, _autoload
from sandfarm._decode import build, timestamp
from sandfarm._html import untrusted
from sandfarm._jobs import decode_job
from sandfarm._sse import MAX_EVENT_BYTES, Parser
from sandfarm._transfer import _place, workspace_path
from sandfarm.errors import InvalidError, ResultError
from sandfarm.models import Job, SandboxInfo
from sandfarm.results import CommandOutcome, CommandResult, ExecuteResult, Installed, InstallResult, Raised
from sandfarm.rich import DisplayGroups

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
def test_timestamps(text: str, micro: int) -> None:
    assert timestamp(text) == datetime(2026, 11, 21, 16, 42, 11, micro, tzinfo=timezone.utc)
    with pytest.raises(ValueError, match="RFC 3339"):
        timestamp("yesterday")


def test_unknown_fields_are_ignored_and_missing_ones_have_defaults() -> None:
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
def test_a_job_has_the_result_class_of_its_kind(kind: str, result: object, cls: type) -> None:
    assert type(decode_job({"id": "job_1", "kind": kind, "state": "completed", "result": result}).result) is cls


def test_an_older_farm_does_not_number_values() -> None:
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


def test_formats_are_grouped_by_the_number_of_their_value() -> None:
    entries = [
        {"display": 0, "mime": "text/html", "data": "<b>1</b>"},
        {"display": 1, "mime": "text/plain", "data": "two"},
        {"display": 2, "mime": "image/png", "data": PNG},
        {"display": 2, "mime": "text/plain", "data": "three"},
        {"display": 2, "mime": "video/mp4", "data": PNG},
        {"display": 3, "mime": "text/latex", "data": "four"},
        {"display": 4, "mime": "video/mp4", "url": "http://x/"},
        {"display": 1, "mime": "text/plain", "data": "two, updated"},
    ]
    results = build(ExecuteResult, {"results": entries}).results
    assert [r.mimes for r in results] == [
        ("text/html",),
        ("text/plain",),
        ("image/png", "text/plain", "video/mp4"),
        ("text/latex",),
        ("video/mp4",),
    ]
    assert results[1].text == "two, updated"


def test_a_stream_of_numbered_formats_returns_each_value_when_it_is_complete() -> None:
    groups = DisplayGroups()

    def complete(**entry: object) -> list[tuple[str, ...]]:
        return [value.mimes for value in groups.add(entry)]

    assert complete(display=0, mime="image/png", data=PNG) == []
    assert complete(display=0, mime="text/plain", data="1") == []
    assert complete(display=1, mime="text/html", data="2") == [("image/png", "text/plain")]
    assert complete(display=1, mime="text/html", data="2, updated") == [("text/html",)]
    assert [value.html for value in groups.end()] == ["2, updated"]
    assert groups.end() == []


def test_updates_in_a_stream_name_what_they_replace() -> None:
    groups = DisplayGroups("job_1")
    seen: list[Rich] = []
    states: list[tuple[int, str, dict[str, object]]] = [
        (0, "1", {"display_id": "bar", "metadata": {"width": 3}}),
        (0, "2", {"display_id": "bar", "update": True}),
        (1, "3", {"update": True}),  # of a value that an earlier job displayed
        (0, "4", {}),  # of a farm that says nothing about updates
    ]
    for display, text, more in states:
        for mime in ("text/html", "text/plain"):
            seen += groups.add({"display": display, "mime": mime, "data": text, **more})
    seen += groups.end()
    assert [(v.text, v.html, v.handle, v.update) for v in seen] == [
        ("1", "1", "job_1/0", False),
        ("2", "2", "job_1/0", True),
        ("3", "3", "job_1/1", False),
        ("4", "4", "job_1/0", True),
    ]
    assert [(v.display_id, v.metadata) for v in seen] == [("bar", {"width": 3}), ("bar", {}), ("", {}), ("", {})]


def test_an_update_with_other_formats_is_a_value_of_its_own() -> None:
    groups = DisplayGroups()
    assert groups.add({"display": 0, "mime": "text/html", "data": "1"}) == []
    assert [v.html for v in groups.add({"display": 0, "mime": "text/latex", "data": "2", "update": True})] == ["1"]
    assert [v.mimes for v in groups.end()] == [("text/latex",)]


def test_values_of_results_have_names_and_metadata() -> None:
    entry = {"display": 0, "mime": "text/plain", "data": "1", "display_id": "bar", "metadata": {"width": 3}, "result": True}
    assert build(ExecuteResult, {"results": [entry]}).results == (Rich({"text/plain": "1"}, {}, "bar", {"width": 3}, True),)


def test_a_value_of_a_stream_equals_that_of_the_result() -> None:
    entry = {"display": 0, "mime": "text/plain", "data": "1", "display_id": "bar"}
    groups = DisplayGroups("job_1")
    groups.add(entry)
    assert tuple(groups.end()) == build(ExecuteResult, {"results": [entry]}).results


def test_a_notebook_shows_updates_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str | None]] = []
    notebook = types.ModuleType("IPython.display")
    notebook.display = lambda value, display_id=None: calls.append((value.text, display_id))  # type: ignore[attr-defined]
    notebook.update_display = lambda value, display_id: calls.append((f"update {value.text}", display_id))  # type: ignore[attr-defined]
    package = types.ModuleType("IPython")
    package.display = notebook  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    for value in [
        Rich({"text/plain": "1"}),
        Rich({"text/plain": "2"}, handle="job_1/0"),
        Rich({"text/plain": "3"}, handle="job_1/0", update=True),
    ]:
        value.show()
    assert calls == [("1", None), ("2", "job_1/0"), ("update 3", "job_1/0")]


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
    assert str(replace(result, stderr="warning\n")) == "out\nwarning\n42\nTraceback\nE: v"
    assert str(ExecuteResult(stdout="out\n", stderr="err\n", exit_code=137)) == "out\nerr\nexit code 137"
    assert str(CommandResult(results=(CommandOutcome(stderr="no\n", exit_code=3),))) == "no\nexit code 3"


def test_texts_end_with_the_notes() -> None:
    notes = ("The module cv2 is not installed.", "Another.")
    lines = "note: The module cv2 is not installed.\nnote: Another."
    ran = ExecuteResult(stdout="out\n", notes=notes)
    assert (str(ran), ran.text) == ("out\n" + lines, "out")
    assert str(ExecuteResult(notes=notes)) == lines
    commands = CommandResult(results=(CommandOutcome(stdout="out\n", stderr="err\n"),), notes=notes)
    assert str(commands) == "out\nerr\n" + lines
    assert str(InstallResult(packages=(Installed("six", version="1", status="installed"),), notes=notes)) == "six 1\n" + lines
    for shown in (commands._repr_html_(), replace(ran, stderr="err")._repr_mimebundle_()["text/html"]):
        assert shown.endswith(f'<pre style="font-family:monospace">{lines}</pre>')


def test_texts_have_the_packages_that_failed() -> None:
    why = "nope was not found in the package index: check its name."
    installed = (Installed("six", version="1", status="installed"), Installed("nope", status="failed", message=why))
    lines = f"package nope: failed: {why}\nnote: Or else."
    ran = ExecuteResult(exit_code=1, error=Raised("E", "v"), installed=installed, notes=("Or else.",))
    commands = CommandResult((CommandOutcome(exit_code=1),), installed=installed, notes=("Or else.",))
    assert (str(ran), str(commands)) == ("E: v\n" + lines, "exit code 1\n" + lines)
    for shown in (ran._repr_html_(), commands._repr_html_()):
        assert shown.endswith(f'<pre style="font-family:monospace">{lines}</pre>')
    unnamed = Installed(requested="./a", status="failed")
    assert str(ExecuteResult(installed=(unnamed,))) == "package ./a: failed"


def test_texts_name_what_is_here() -> None:
    told = {
        "install it (POST /v1/sandboxes/sbx_1/packages).": "install it (sandbox.packages.install(…)).",
        "it (POST /v1/sandboxes/sbx_1/packages with manager npm).": 'it (sandbox.packages.install(…, manager="npm")).',
        "GET /v1/sandboxes/sbx_1/packages lists it.": "sandbox.packages.list() lists it.",
        "restart it (POST /v1/sandboxes/sbx_1/restart).": "restart it (sandbox.restart()).",
        "with input (POST …/processes with stdin).": "with input (sandbox.processes.start(…, stdin=True)).",
        "by PATCH /v1/sandboxes/{id} or sandfarm sandbox allow;": "by sandbox.update(allow_hosts=…);",
        "along (files of a run, --file of sandfarm run), or": "along (files of a run), or",
        "first (sandfarm cp, upload_file_to_sandbox of MCP, PUT …/files/).": "first (sandbox.files.upload).",
        "with network packages": "with network packages",
    }
    given, want = {"notes": list(told)}, tuple(told.values())
    assert build(ExecuteResult, given).notes == build(CommandResult, given).notes == build(InstallResult, given).notes == want
    assert [build(Installed, {"message": text}).message for text in told] == list(told.values())


TOLD = ("Install it.", "Or else.")
LACKS = (Installed("six", status="installed"), Installed("nope", status="failed", message="there is no nope"))
FAILED = "package nope: failed: there is no nope\n"


@pytest.mark.parametrize(
    ("result", "message", "lines"),
    [
        (ExecuteResult(exit_code=3, notes=TOLD), "the code exited with 3", ""),
        (ExecuteResult(exit_code=3, installed=LACKS, notes=TOLD), "the code exited with 3", FAILED),
        (CommandResult((CommandOutcome("false", 1),), notes=TOLD), "'false' exited with 1", ""),
        (CommandResult((CommandOutcome("false", 1),), installed=LACKS, notes=TOLD), "'false' exited with 1", FAILED),
        (InstallResult((Installed(status="failed", message="there is no six"),), notes=TOLD), "there is no six", ""),
    ],
)
def test_an_error_of_a_result_has_its_remarks(
    result: ExecuteResult | CommandResult | InstallResult, message: str, lines: str
) -> None:
    with pytest.raises(ResultError) as raised:
        result.check()
    for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):
        printed = "".join(traceback.format_exception_only(type(error), error))
        assert printed.endswith(f"Error: {message}\n{lines}note: Install it.\nnote: Or else.\n")
        assert str(error) == (message if sys.version_info >= (3, 11) else printed.partition(": ")[2].rstrip("\n"))


def test_what_a_notebook_shows() -> None:
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
        (
            "<table border='1'><tr><td>1</td></tr></table>",
            '<table border="1"><tbody><tr><td>1</td></tr></tbody></table>',
        ),
        ("<style>td {}</style><p>x", "<p>x</p>"),
        ("<p><b>x</p>y", "<p><b>x</b></p><b>y</b>"),
        ("<img src=x onerror=x()>", "<img>"),
        ("<p onclick=x()>x", "<p>x</p>"),
        ("<a href='\tjava&#10;script:x()'>x</a>", '<a rel="noopener noreferrer">x</a>'),
        ("<a href='DATA:text/html,x'>x</a>", '<a rel="noopener noreferrer">x</a>'),
        ("<a href='https://x/'>x</a>", '<a href="https://x/" rel="noopener noreferrer">x</a>'),
        ("<base href=//x><link rel=stylesheet href=//x><meta http-equiv=refresh content='0;url=//x'>x", "x"),
        ("<noscript><p title='</noscript><img src=x onerror=x()>'>", "&lt;p title='<img>'&gt;"),
        ("<table background='http://x/'><tr><td>x", "<table><tbody><tr><td>x</td></tr></tbody></table>"),
        ('<img src="data:image/svg+xml;base64,AA==">', "<img>"),
        ('<img src="http://tracker/"><img src="data:image/png;base64,AA==">', '<img><img src="data:image/png;base64,AA==">'),
        ("a &lt;script&gt; b & c", "a &lt;script&gt; b &amp; c"),
        ("<p style='background:url(http://x)' class=\"a&quot;b\">x</p>", '<p class="a&quot;b">x</p>'),
        ("</div></div>x", "x"),
        ("<!-- c --><br>", "<br>"),
    ],
)
def test_html_is_cleaned(html: str, shown: str) -> None:
    assert untrusted(html) == shown


@pytest.mark.parametrize(
    "html",
    [
        "<script>x()</script>",
        "<SCRIPT src=x>",
        "<svg/onload=x()>",
        "<svg><style><img src=x onerror=x()></style>",
        "<iframe srcdoc='x'>",
        "<form action=x><input>",
        "<p><math><mi//xlink:href=x>",
    ],
)
def test_html_that_needs_more_is_shown_in_a_sandboxed_frame(html: str) -> None:
    shown = untrusted(html)
    assert shown.startswith('<iframe sandbox="allow-scripts" ')
    assert "allow-same-origin" not in shown
    assert shown.count("<") == 2, "the whole HTML is one attribute"


def test_events_do_not_depend_on_the_size_of_chunks() -> None:
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
    ("path", "relative"),
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
def test_paths_in_the_workspace(path: str, relative: str) -> None:
    assert workspace_path(path) == relative


@pytest.mark.parametrize("path", ["..", "a/../..", "/etc", "/workspace/../etc", "/"])
def test_paths_outside_the_workspace(path: str) -> None:
    with pytest.raises(InvalidError):
        workspace_path(path)


@pytest.mark.parametrize(
    "name",
    "Makefile Make\ufb01le confte\u017ft.py GNUmakefile docker-compose.yml Compose.override.yaml CLAUDE.md agents.md "
    "conftest.py sitecustomize.py json.py Random.py json.pyc json.so json.cpython-313-darwin.so json.pyd "
    "mine.so mine.pyc justfile tox.ini BUILD BUILD.bazel Brewfile uv.toml gradle.properties "
    "usercustomize.cpython-313.so .bashrc \u200b.env ..x python3 ls".split(" "),
)
def test_names_that_other_programs_load(name: str) -> None:
    assert _autoload.reason(name)


@pytest.mark.parametrize(
    "name",
    "plot.png makefile.txt compose.json my_conftest.py test.py my_json.py json.schema.py report a.b..c".split(" "),
)
def test_names_that_no_program_loads(name: str) -> None:
    assert _autoload.reason(name) == ""


def test_names_that_come_before_others_of_a_folder(tmp_path: Path) -> None:
    for name in ("helper.js", "old.ts", "old.js"):
        (tmp_path / name).touch()
    for name, held in {"helper": True, "helper.ts": True, "helper.json": False, "old.ts": False, "new.ts": False}.items():
        assert bool(_autoload.reason(name, tmp_path)) == held, name
    for part in ("HEAD", "objects", "refs"):
        assert not _autoload.reason("config", tmp_path), "no repository yet"
        (tmp_path / part).mkdir()
    assert _autoload.reason("config", tmp_path)


def test_no_file_of_the_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("mine")
    (tmp_path / "train-1.py").symlink_to(tmp_path / "nowhere")
    part = tmp_path / "part"
    part.write_text("theirs")
    assert _place(part, tmp_path / "train.py") == tmp_path / "train-2.py"
    assert ((tmp_path / "train.py").read_text(), (tmp_path / "train-2.py").read_text()) == ("mine", "theirs")
    assert not (tmp_path / "nowhere").exists()
