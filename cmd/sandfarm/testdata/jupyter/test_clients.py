"""Clients of Jupyter, from their packages and unchanged, on a real farm: its address is in JUPYTER_GATEWAY_URL."""

import asyncio
import contextlib
import json
import os
import urllib.request
from urllib.parse import urlparse

import nbformat
import pytest
import websocket
from books import notebook, types
from jupyter_kernel_client import JupyterKernelClient
from jupyter_server.gateway.managers import GatewayKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

URL = os.environ["JUPYTER_GATEWAY_URL"]
every = pytest.mark.every  # what `make test` leaves out: importing it takes long
CODE = """\
import matplotlib.pyplot as plt
print("hi")
plt.plot([1, 3, 2])
plt.show()
6 * 7"""


@pytest.fixture
def patience(monkeypatch):
    """A busy machine takes its time to start a sandbox."""
    monkeypatch.setenv("KERNEL_LAUNCH_TIMEOUT", "100")


def run(book, **options):
    NotebookClient(book, timeout=120, kernel_manager_class=GatewayKernelManager, **options).execute()
    return book


def test_nbclient(patience):
    book = run(notebook(CODE, "import sys\nprint('to stderr', file=sys.stderr)", "x = 6", "x * 7"))
    assert types(book.cells[0]) == ["stream", "display_data", "execute_result"]
    assert "image/png" in book.cells[0]["outputs"][1]["data"]
    assert book.cells[1]["outputs"][0]["text"] == "to stderr\n"
    assert book.cells[3]["outputs"][0]["data"]["text/plain"] == "42"
    assert [cell["execution_count"] for cell in book.cells] == [1, 2, 3, 4]


def test_nbclient_errors(patience):
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        run(notebook("1 / 0", "print('never')"))
    book = run(notebook("1 / 0", "print('on')"), allow_errors=True)
    assert types(book.cells[0]) == ["error"] and types(book.cells[1]) == ["stream"]


def test_nbclient_dead_kernel(patience):
    """A kernel that dies ends its cell, where other servers let nbclient wait for ever."""
    book = run(notebook("import os\nos._exit(9)"), allow_errors=True)
    assert book.cells[0]["outputs"][0]["ename"] == "KernelDied"


@every
def test_papermill(patience, tmp_path):
    import papermill

    source, result = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    book = notebook("n = 1", "print(n * 2)")
    book.cells[0].metadata["tags"] = ["parameters"]
    book.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(book, source)
    manager = "jupyter_server.gateway.managers.GatewayKernelManager"
    papermill.execute_notebook(source, result, parameters={"n": 21}, kernel_manager_class=manager, progress_bar=False)
    assert nbformat.read(result, 4).cells[-1]["outputs"][0]["text"] == "42\n"


def test_jupyter_kernel_client():
    with JupyterKernelClient(server_url=URL, token="") as kernel:
        reply = kernel.execute(CODE, timeout=120)
        assert reply["status"] == "ok" and reply["execution_count"] == 1
        assert [output["output_type"] for output in reply["outputs"]] == ["stream", "display_data", "execute_result"]
        assert kernel.execute("1 / 0", timeout=120)["status"] == "error"
        kernel.execute("x = 5", timeout=120)
        assert kernel.execute("x + 1", timeout=120)["outputs"][0]["data"]["text/plain"] == "6"


@every
def test_autogen():
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock
    from autogen_ext.code_executors.docker_jupyter import DockerJupyterCodeExecutor
    from autogen_ext.code_executors.docker_jupyter._jupyter_server import JupyterConnectionInfo

    at = urlparse(URL)
    info = JupyterConnectionInfo(host=f"{at.netloc}{at.path}", use_https=False, port=None, token="")

    async def use(*blocks):
        async with DockerJupyterCodeExecutor(info, timeout=120) as executor:
            return await executor.execute_code_blocks([CodeBlock(code, "python") for code in blocks], CancellationToken())

    good = asyncio.run(use("x = 6", "print(x * 7)"))
    assert good.exit_code == 0 and "42" in good.output
    bad = asyncio.run(use("1 / 0"))
    assert bad.exit_code == 1 and "ZeroDivisionError" in bad.output


def call(path, body=None, method="POST"):
    data = json.dumps(body or {}).encode() if method == "POST" else None
    request = urllib.request.Request(URL.removesuffix("/jupyter") + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or b"null")


@contextlib.contextmanager
def connected(kernel):
    """Messages of a kernel, as they come."""
    at = f"{URL.replace('http', 'ws', 1)}/api/kernels/{kernel['id']}/channels?session_id=s"
    socket = websocket.create_connection(at, timeout=60)
    yield (json.loads(text) for text in iter(socket.recv, ""))
    socket.close()


def of_job(messages, job, last):
    """The messages that belong to a job, without the states, up to the one of a type."""
    seen = []
    while not seen or seen[-1]["msg_type"] != last:
        seen += [m for m in [next(messages)] if m["parent_header"].get("msg_id") == job["id"] and m["msg_type"] != "status"]
    return seen


def started():
    kernel = call("/jupyter/api/kernels", {"env": {"KERNEL_LAUNCH_TIMEOUT": "100"}})
    return kernel, f"/jupyter/api/kernels/{kernel['id']}", f"/v1/sandboxes/{kernel['sandbox']}/execute"


def test_jobs_of_others():
    """What jobs of /v1 do in a kernel is another client's work, to who is connected before they begin and to who connects while they run."""
    kernel, path, execute = started()
    begun = {"code": "import time\nprint('begun', flush=True)\ntime.sleep(600)"}
    with connected(kernel) as messages:
        job = call(execute, {"code": "x = 6\nprint('by another', x * 7)\nx"})
        seen = of_job(messages, job, "execute_result")
        assert [m["msg_type"] for m in seen] == ["execute_input", "stream", "execute_result"]
        assert "print('by another'" in seen[0]["content"]["code"] and seen[1]["content"]["text"] == "by another 42\n"
        job = call(execute, begun)
        of_job(messages, job, "stream")
        call(path + "/interrupt")
        assert [m["msg_type"] for m in of_job(messages, job, "error")] == ["error"]
    call(path, method="DELETE")
    kernel, path, execute = started()
    job = call(execute, begun)
    with connected(kernel) as messages:
        of_job(messages, job, "stream")
    call(path, method="DELETE")


def test_dead_idle_kernel():
    """Clients are told that a kernel died and that there is a new one, and of a restart that was asked for they are not told as of a crash."""
    kernel, path, execute = started()
    with connected(kernel) as messages:
        states = (m["content"].get("execution_state") for m in messages if m["msg_type"] == "status")
        call(execute, {"code": "import threading, os\nthreading.Timer(0.1, lambda: os._exit(1)).start()"})
        while next(states) != "restarting":
            pass
        while next(states) != "starting":
            pass
        call(path + "/restart")
        told = [next(states)]
        while told[-1] != "starting":
            told.append(next(states))
        assert "restarting" not in told
    call(path, method="DELETE")


def test_no_kernel_is_left():
    """All clients have shut their kernels down."""
    with urllib.request.urlopen(URL + "/api/kernels") as answer:
        assert answer.read().strip() == b"[]"
