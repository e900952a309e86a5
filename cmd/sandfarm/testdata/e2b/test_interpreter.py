"""The code interpreter of e2b-code-interpreter."""

import asyncio
import json
import os
import threading

import httpx
import pytest
from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

PNG = "iVBORw0KGgo"  # how a PNG begins


@pytest.fixture(scope="module")
def box():
    made = Sandbox.create(timeout=300)
    yield made
    made.kill()


def test_output_comes_as_it_is_printed(box):
    lines = []
    ran = box.run_code(
        "import sys, time\nprint('out', flush=True)\nprint('err', file=sys.stderr, flush=True)",
        on_stdout=lambda m: lines.append(("out", m.line)),
        on_stderr=lambda m: lines.append(("err", m.line)),
    )
    assert sorted(lines) == [("err", "err\n"), ("out", "out\n")]
    assert ran.logs.stdout == ["out\n"] and ran.logs.stderr == ["err\n"] and ran.error is None and ran.results == []


def test_output_arrives_before_the_end(box):
    seen = threading.Event()

    def write(_):
        box.files.write("/home/user/go", "1")  # the code waits for it
        seen.set()

    code = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n'done'"
    assert box.run_code(code, on_stdout=write, timeout=60).text == "done"
    assert seen.is_set()


def test_variables_stay(box):
    box.run_code("kept = 41")
    ran = box.run_code("kept + 1")
    assert ran.text == "42" and ran.execution_count > 1


def test_the_result_and_what_is_displayed(box):
    ran = box.run_code("from IPython.display import display, HTML\ndisplay(HTML('<b>x</b>'))\n'a'")
    assert [(r.is_main_result, r.html, r.text) for r in ran.results] == [
        (False, "<b>x</b>", "<IPython.core.display.HTML object>"),
        (True, None, "a"),
    ]


def test_errors(box):
    errors = []
    ran = box.run_code("print('before')\n1/0", on_error=errors.append)
    assert ran.logs.stdout == ["before\n"] and len(errors) == 1
    assert ran.error.name == "ZeroDivisionError" and ran.error.value == "division by zero" and "1/0" in ran.error.traceback
    assert box.run_code("raise SystemExit(3)").error.value == "3"
    assert box.run_code("import os; os._exit(1)").error.name == "KernelDied"
    assert box.run_code("1").text == "1"


def test_charts(box):
    code = "import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [1, 2], label='n'); plt.title('t'); plt.show()"
    (shown,) = box.run_code(code).results
    assert shown.png.startswith(PNG) and shown.text == "<Figure size 640x480 with 1 Axes>"
    chart = shown.chart
    assert (chart.type, chart.title) == ("bar", "t")
    assert [(e.label, e.group, e.value) for e in chart.elements] == [("a", "n", 1), ("b", "n", 2)]


def test_tables_and_values(box):
    (table,) = box.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2]})").results
    assert table.data == {"a": [1, 2]} and "<table" in table.html
    (value,) = box.run_code("{'a': [1, None, 2.5]}").results
    assert value.json == {"a": [1, None, 2.5]}


@pytest.mark.parametrize("side", [250, 1000])  # in the stream, and behind a link
def test_pictures_are_whole(box, side):
    code = f"import os\nfrom PIL import Image\nImage.frombytes('RGB', ({side}, {side}), os.urandom(3 * {side} * {side}))"
    (shown,) = box.run_code(code).results
    assert shown.png.startswith(PNG) and len(shown.png) > 3 * side * side and shown.text.startswith("<PIL.Image")


def test_languages(box):
    ran = box.run_code("echo $GREETING; exit 3", language="bash", envs={"GREETING": "hello"})
    assert ran.logs.stdout == ["hello\n"] and ran.error.value == "exit status 3"
    with pytest.raises(SandboxException, match="it runs python, bash"):
        box.run_code("1", language="r")
    with pytest.raises(SandboxException, match="available: bash, python"):
        box.create_code_context(language="java")


def test_variables_of_the_environment_are_of_one_execution(box):
    code = "import os; os.environ.get('OWN', 'none')"
    assert box.run_code(code, envs={"OWN": "x"}).text == "x"
    assert box.run_code(code).text == "none"


def test_contexts(box):
    box.run_code("import os; os.makedirs('deep', exist_ok=True)")
    made = box.create_code_context(cwd="/home/user/deep")
    assert (made.language, made.cwd) == ("python", "/home/user/deep")
    assert box.run_code("import os; x = 1; os.getcwd()", context=made).text == "/workspace/deep"
    assert box.run_code("x", context=made).text == "1"
    assert box.run_code("x").error.name == "NameError"
    listed = box.list_code_contexts()
    assert listed[0].cwd == "/home/user" and listed[-1] == made
    box.restart_code_context(made)
    assert box.run_code("x", context=made).error.name == "NameError"
    box.remove_code_context(made)
    assert made.id not in [c.id for c in box.list_code_contexts()]
    for gone in (lambda: box.run_code("1", context=made), lambda: box.remove_code_context(made), lambda: box.restart_code_context(made)):
        with pytest.raises(NotFoundException, match="not found"):
            gone()
    with pytest.raises(SandboxException, match="is not there"):
        box.create_code_context(cwd="/home/user/nowhere")


def test_code_stops_when_its_caller_leaves(box):
    with pytest.raises(TimeoutException):
        box.run_code("open('left', 'w').close()\nimport time\nwhile True: time.sleep(0.01)", timeout=3)
    assert box.run_code("import os; os.path.exists('left')", timeout=60).text == "True"


def test_killed_while_code_runs():
    box = Sandbox.create(timeout=300)
    with pytest.raises(TimeoutException, match="sandbox was killed while the request was in progress"):
        box.run_code("print('begun', flush=True)\nimport time; time.sleep(600)", on_stdout=lambda _: box.kill(), timeout=120)
    with pytest.raises(TimeoutException, match="was not found"):
        box.run_code("1")


def test_bad_requests(box):
    other = Sandbox.create(timeout=300)
    try:
        own = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49999"}
        token = {**own, "X-Access-Token": box._envd_access_token}
        foreign = {**own, "X-Access-Token": other._envd_access_token}
        for headers, body, status in (
            (own, {"code": "1"}, 401),
            (foreign, {"code": "1"}, 401),
            ({**own, "X-Access-Token": "x"}, {"code": "1"}, 401),
            (token, {"code": 1}, 400),
            (token, [], 400),
            (token, {"code": "1", "language": "python", "context_id": "default"}, 400),
            (token, {"code": "1", "context_id": "python-nobody"}, 404),
            (token, {"code": "1", "env_vars": {"A=B": "x"}}, 400),
        ):
            answer = httpx.post(f"{os.environ['E2B_SANDBOX_URL']}/execute", headers=headers, json=body, timeout=60)
            assert (answer.status_code, answer.json()["code"]) == (status, status), (body, answer.text)
        answer = httpx.post(f"{os.environ['E2B_SANDBOX_URL']}/execute", headers=token, json={"code": "1"}, timeout=60)
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert [line["type"] for line in lines] == ["result", "number_of_executions", "end_of_execution"]
    finally:
        other.kill()


def test_async():
    async def run():
        box = await AsyncSandbox.create(timeout=300)
        try:
            context = await box.create_code_context()
            first, second = await asyncio.gather(box.run_code("1 + 1"), box.run_code("2 + 2", context=context))
            assert (first.text, second.text) == ("2", "4")
            assert [c.id for c in await box.list_code_contexts()][-1] == context.id
        finally:
            await box.kill()

    asyncio.run(run())


def test_code_finds_files_at_home_user(box):
    box.files.write("/home/user/table.csv", "a,b\n1,2\n")
    ran = box.run_code("print(open('/home/user/table.csv').read(), end='')\nopen('/home/user/made.txt', 'w').write('x')\n!pwd")
    assert ran.error is None and "".join(ran.logs.stdout).split() == ["a,b", "1,2", "/home/user"], ran
    assert box.files.read("made.txt") == "x"
    assert "".join(box.run_code("pwd; cat table.csv", language="bash").logs.stdout) == "/home/user\na,b\n1,2\n"
