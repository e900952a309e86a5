"""Clients of Jupyter, from their packages and unchanged, on a real farm: its address is in JUPYTER_GATEWAY_URL."""

import asyncio
import os
import urllib.request
from urllib.parse import urlparse

import nbformat
import pytest
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


def test_no_kernel_is_left():
    """All clients have shut their kernels down."""
    with urllib.request.urlopen(URL + "/api/kernels") as answer:
        assert answer.read().strip() == b"[]"
