"""Code and commands in a real sandbox."""

from __future__ import annotations

import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from sandfarm import (
    Client,
    CodeError,
    CommandError,
    ConflictError,
    ExecuteResult,
    InvalidError,
    JobTimedOut,
    NotFoundError,
    Rich,
    Sandbox,
    UnauthorizedError,
)


def test_variables_are_kept_between_runs(shared: Sandbox) -> None:
    shared.run("kept = 20")
    result = shared.run("print('out'); kept + 22")
    assert result.ok
    assert result.stdout == "out\n"
    assert result.results[0].text == "42"
    assert str(result) == "out\n42"


def test_a_result_has_the_error_and_check_raises_it(shared: Sandbox) -> None:
    result = shared.run("print('before')\ndef f():\n    raise ValueError('no good')\nf()")
    assert not result.ok
    assert result.error is not None
    assert (result.error.name, result.error.value, result.exit_code) == ("ValueError", "no good", 1)
    assert "ValueError: no good" in str(result)
    with pytest.raises(CodeError, match="ValueError: no good") as raised:
        result.check()
    assert raised.value.result is result
    with pytest.raises(CodeError, match="exited with 3"):
        shared.run("import sys; sys.exit(3)", check=True)


def test_callbacks_receive_output_values_and_files_as_they_appear(box: Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    shown: list[Rich] = []
    files: list[str] = []
    seen_before_the_end = threading.Event()

    def stdout(text: str) -> None:
        out.append(text)
        if "first" in text:
            seen_before_the_end.set()
            box.interrupt()  # the code waits for it

    result = box.run(
        "import sys, time\n"
        "try:\n    print('first', flush=True); time.sleep(600)\nexcept KeyboardInterrupt: pass\n"
        "open('late.txt', 'w').write('x')\n"
        "print('oops', file=sys.stderr)\n"
        "from IPython.display import display, HTML\n"
        "display(HTML('<b>bold</b>')); display(7)\n"
        "'last'",
        on_stdout=stdout,
        on_stderr=err.append,
        on_result=shown.append,
        on_artifact=lambda artifact: files.append(artifact.path),
    )
    assert seen_before_the_end.is_set()
    assert "".join(out) == result.stdout == "first\n"
    assert "".join(err) == result.stderr == "oops\n"
    assert [r.html or r.text for r in shown] == ["<b>bold</b>", "7", "'last'"]
    assert shown == list(result.results)
    assert "late.txt" in files


@pytest.mark.parametrize("error", [LookupError("mine"), CodeError("mine", result=ExecuteResult())])
def test_a_callback_that_raises_cancels_the_job(box: Sandbox, error: Exception) -> None:
    def fail(_: str) -> None:
        raise error

    with pytest.raises(type(error), match="mine"):
        box.run("print('x', flush=True)\nimport time\ntime.sleep(600)", on_stdout=fail)
    job = next(job for job in box.jobs() if job.kind == "execute")
    assert box.wait(job, timeout=60).state == "canceled"


def test_pictures_and_tables(shared: Sandbox, tmp_path: Path) -> None:
    result = shared.run(
        "import matplotlib.pyplot as plt, pandas as pd\n"
        "plt.plot([1, 3, 2]); plt.show()\n"
        "display(pd.DataFrame({'a<b': [1, 2]}))\n"
        "plt.figure(); plt.plot([1]); plt.show()\n"
        "42"
    )
    picture, table, second, last = result.results
    assert picture.png is not None
    assert picture.png.startswith(b"\x89PNG\r\n")
    assert picture.save(tmp_path / "a.png").read_bytes() == picture.png
    assert "a&lt;b" in table.html
    assert "a&lt;b" in (table._repr_html_() or "")
    assert "<style" not in (table._repr_html_() or "")
    assert (second.png or b"")[:4] == b"\x89PNG"
    assert last.text == "42"
    assert last.png is None
    assert len(result.images) == 2
    html = result._repr_html_()
    assert html.count("<img") == 2
    assert "<table" in html


def test_values_are_told_apart(shared: Sandbox) -> None:
    code = (
        "display(HTML('<b>a</b>')); display({'video/mp4': 'AAAA', 'text/plain': 'b'}, raw=True)\n"
        "handle = display('c', display_id=True); display('d'); handle.update('e'); 'f'"
    )
    shown: list[Rich] = []
    results = shared.run("from IPython.display import display, HTML\n" + code, on_result=shown.append).results
    assert [r.mimes for r in results[:2]] == [("text/html", "text/plain"), ("video/mp4", "text/plain")]
    assert [r.text for r in results[1:]] == ["b", "'e'", "'d'", "'f'"], "an update replaces its value"
    assert [r.text for r in shown[1:]] == ["b", "'c'", "'d'", "'e'", "'f'"], "a stream has the value and its update"
    assert [shown[n] for n in (0, 1, 3, 4, 5)] == [results[n] for n in (0, 1, 3, 2, 4)]


def test_svg_and_json_are_text(shared: Sandbox) -> None:
    code = (
        "from IPython.display import display, SVG, JSON\n"
        "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"><text>ä</text></svg>')); display(JSON({'a': 1}))"
    )
    shown: list[Rich] = []
    svg, json = shared.run(code, on_result=shown.append).results
    assert svg.svg.startswith("<svg ")
    assert "ä" in svg.svg
    encoded = (svg._repr_html_() or "").partition("base64,")[2].partition('"')[0]
    assert base64.b64decode(encoded).decode() == svg.svg
    assert json.data["application/json"].replace(" ", "") == '{"a":1}'  # type: ignore[arg-type]
    assert shown == [svg, json]


def test_a_large_value_is_fetched_from_its_link(shared: Sandbox) -> None:
    result = shared.run("from IPython.display import display, HTML\ndisplay(HTML('<p>' + 'ä' * 400_000 + '</p>'))")
    assert result.results[0].html == "<p>" + "ä" * 400_000 + "</p>"
    assert not result.results[0].links


def test_truncated_output_is_complete_in_an_artifact(shared: Sandbox) -> None:
    result = shared.run("print('x' * (3 << 20))")
    assert result.truncated.stdout
    assert len(result.stdout) < 2 << 20
    whole = next(a for a in result.artifacts if a.size == (3 << 20) + 1)
    assert shared.artifacts.read(whole) == b"x" * (3 << 20) + b"\n"


def test_output_that_is_not_utf8(shared: Sandbox) -> None:
    result = shared.run(r"import sys; sys.stdout.buffer.write(b'a\xff\xfeb\n'); sys.stdout.flush()")
    assert result.stdout.startswith("a\ufffd")
    assert result.stdout.endswith("b\n")
    command = shared.bash(r"printf 'a\377b'")
    assert command.stdout == "a\ufffdb"
    pieces: list[str] = []
    shared.bash(r"printf 'a\377b'", on_stdout=pieces.append)
    assert "".join(pieces) == "a\ufffdb"


def test_unicode_in_code_and_a_surrogate(shared: Sandbox) -> None:
    assert shared.run("print('数据 🐦 \\u0000'.encode())").stdout.startswith("b'\\xe6")
    with pytest.raises(InvalidError, match="not valid Unicode"):
        shared.run("print('\udc80')")


def test_a_timeout_keeps_the_output(box: Sandbox) -> None:
    for timeout in (2, 8, 32):  # the time counts before the code begins, too
        with pytest.raises(JobTimedOut) as raised:
            box.run("print('so far', flush=True)\nimport time\ntime.sleep(600)", timeout=timeout)
        if raised.value.result.stdout:
            break
    assert raised.value.result.stdout == "so far\n"
    assert raised.value.job.state == "timed_out"
    assert f"stopped after its timeout of {timeout} seconds" in str(raised.value)
    assert raised.value.code


def test_jobs_are_found_by_their_outcome(client: Client, shared: Sandbox) -> None:
    shared.run("1")
    shared.run("1 / 0")
    found = next(client.jobs(sandbox_id=shared.id, outcome="failed"))
    assert (found.state, found.outcome, found.result.error.name) == ("completed", "failed", "ZeroDivisionError")
    assert next(client.jobs(sandbox_id=shared.id, outcome="ok")).outcome == "ok"


def test_a_host_that_is_not_open_is_noted(shared: Sandbox) -> None:
    result = shared.run("import urllib.request; urllib.request.urlopen('https://example.com')")
    assert result.error is not None
    assert [note for note in result.notes if 'network "packages"' in note and "nothing else is reached" in note]


def test_env_context_language_and_auto_install(shared: Sandbox) -> None:
    assert shared.run("import os; print(os.environ['MINE'])", env={"MINE": "1"}).stdout == "1\n"
    shared.run("only_here = 1", context="other")
    assert (shared.run("only_here").error or pytest.fail("shared")).name == "NameError"
    assert shared.run("only_here", context="other").results[0].text == "1"
    assert shared.run("echo $((6 * 7))", language="bash").stdout == "42\n"
    assert set(shared.languages()) >= {"python", "bash"}
    installed = shared.run("import inflection; inflection.pluralize('octopus')", auto_install=True)
    assert installed.results[0].text == "'octopi'"
    assert [(p.name, p.ok) for p in installed.installed] == [("inflection", True)]


def test_commands(shared: Sandbox) -> None:
    one = shared.bash("echo hi; echo no >&2")
    assert (one.stdout, one.stderr, one.exit_code, str(one)) == ("hi\n", "no\n", 0, "hi\nno")
    several = shared.bash(["echo a", "exit 4", "echo never"])
    assert (several.stdout, several.exit_code, len(several.results)) == ("a\n", 4, 2)
    continued = shared.bash(["exit 4", "echo b"], continue_on_error=True)
    assert (continued.stdout, continued.exit_code) == ("b\n", 4)
    with pytest.raises(CommandError, match=r"exited with 2.*sorry"):
        shared.bash("echo sorry >&2; exit 2", check=True)
    imported = shared.bash("python -c 'import wcwidth; print(wcwidth.wcswidth(\"ab\"))'", auto_install=True)
    assert imported.stdout == "2\n"
    shared.files.mkdir("below")
    assert shared.bash("pwd; echo $X", cwd="below", env={"X": "1"}).stdout == "/workspace/below\n1\n"


def test_interrupt_and_restart(box: Sandbox) -> None:
    box.run("n = 1")
    job = box.submit("import time\nprint('up', flush=True)\ntime.sleep(600)")
    assert next(e for e in box.events(job) if e.name == "stdout").text == "up\n"
    box.interrupt()
    ended = box.wait(job, timeout=60)
    assert ended.state == "canceled" or ended.result.error.name == "KeyboardInterrupt"
    assert box.run("n").results[0].text == "1"
    box.restart()
    assert (box.run("n").error or pytest.fail("kept")).name == "NameError"


def test_a_run_in_a_sandbox_of_its_own(client: Client) -> None:
    result = client.run(
        "import humanize; print(humanize.naturalsize(open('in/n.bin', 'rb').seek(0, 2)), open('a.txt').read())",
        packages="humanize",
        files={"in/n.bin": b"\xff" * 2000, "a.txt": "text"},
        env={"A": "b"},
        memory_mb=512,
        labels={"made-by": "sdk-tests"},
        check=True,
    )
    assert result.stdout == "2.0 kB text\n"
    with pytest.raises(CodeError, match="ZeroDivisionError"):
        client.run("1/0", check=True)


def test_life_of_a_sandbox(client: Client, unique: str) -> None:
    box = client.create(
        name=f"of the SDK {unique}", labels={"test": unique}, ttl=300, idle=200, env={"A": "1"}, memory_mb=512, cpus=1
    )
    info = box.info()
    assert (info.name, info.state, info.ttl_seconds, info.idle_seconds, info.env_names) == (
        f"of the SDK {unique}",
        "ready",
        300,
        200,
        ("A",),
    )
    assert (info.resources.memory_mb, info.resources.cpus) == (512, 1)
    assert info.open
    assert [found.id for found in client.sandboxes(labels={"test": unique})] == [box.id]
    second = timedelta(seconds=1)
    before, after = info.created_at - second, info.created_at + second
    named = client.sandboxes(name=f"of the SDK {unique}", created_after=before, created_before=after)
    assert [found.id for found in named] == [box.id]
    assert not list(client.sandboxes(name=f"of the SDK {unique}", created_before=before))
    later = box.keep_alive(600)
    assert later.expires_at > info.expires_at
    assert box.update(labels={"test": unique, "x": "y"}).labels == {"test": unique, "x": "y"}
    with client.sandbox(box.id) as attached:
        assert attached.run("1 + 1").results[0].text == "2"
    assert box.info().open, "a with block does not close an existing sandbox"
    box.close()
    box.close()
    assert not client.info(box.id).open
    with pytest.raises(ConflictError, match="closed"):
        box.run("1")
    with pytest.raises(ConflictError):
        client.sandbox(box.id).run("1")
    with pytest.raises(NotFoundError) as raised:
        client.info("sbx_nowhere")
    assert raised.value.code == "not_found"
    assert raised.value.status == 404
    assert raised.value.request_id
    assert raised.value.details["title"] == "Not Found"


def test_first_use_creates_a_sandbox_once(client: Client, unique: str) -> None:
    box = Sandbox(client=client, labels={"test": unique}, ttl=300)
    assert box.id == ""
    with ThreadPoolExecutor(8) as threads:
        values = [r.results[0].text for r in threads.map(lambda n: box.run(f"{n} * {n}"), range(8))]
    assert values == [str(n * n) for n in range(8)]
    assert [found.id for found in client.sandboxes(labels={"test": unique})] == [box.id]
    box.close()


def test_threads_share_a_client(client: Client) -> None:
    def one(n: int) -> str:
        with Sandbox(client=client, ttl=300) as mine:
            mine.run(f"n = {n}")
            return mine.run("print(n)", on_stdout=lambda _: None).stdout

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(one, range(3))) == [f"{n}\n" for n in range(3)]


def test_invalid_arguments(client: Client, shared: Sandbox) -> None:
    with pytest.raises(InvalidError) as raised:
        shared.run("1", timeout=0)
    assert raised.value.code == "invalid"
    assert raised.value.message == "timeout is 0; it must be from 1 to 86400"
    with pytest.raises(InvalidError):
        shared.run("1", language="cobol")
    with pytest.raises(InvalidError, match="not a valid path"):
        client.info("..")
    with Client(client.url, "wrong") as wrong, pytest.raises(UnauthorizedError):
        wrong.images()


def test_farm_information(client: Client) -> None:
    assert client.health()["status"] == "ok"
    assert client.ready()["status"] == "ready"
    assert "python" in {image.name for image in client.images()}
    assert client.workers()[0].slots > 0
    assert {queue.name for queue in client.queues()} >= {"cpu"}
    for of_the_fleet in (client.activity, client.fleet_events, client.scale):
        with pytest.raises(UnauthorizedError, match="scope admin"):  # the key of these tests is a tenant's
            of_the_fleet()
    assert client.limits()["wait_max_seconds"] == 60
    assert client.languages("no-such-image") == ()
