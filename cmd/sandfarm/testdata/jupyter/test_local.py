"""Kernels that programs of this machine start by the kernelspec of `sandfarm kernel install`, whose program is in SANDFARM_PROGRAM."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest
from books import notebook, types
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

URL = os.environ["JUPYTER_GATEWAY_URL"]
every = pytest.mark.every  # what `make test` leaves out
PATIENCE = 120
# A client that starts a kernel and is killed.
DOOMED = """
import time
from jupyter_client.manager import start_new_kernel
start_new_kernel(kernel_name="farm", startup_timeout=120)
print("started", flush=True)
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """A Jupyter without the gateway that has the kernel `farm`."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("SANDFARM_URL", URL.removesuffix("/jupyter"))
    monkeypatch.delenv("JUPYTER_GATEWAY_URL")
    monkeypatch.setenv("KERNEL_LAUNCH_TIMEOUT", "100")
    subprocess.run([os.environ["SANDFARM_PROGRAM"], "kernel", "install", "--name", "farm"], check=True)


def sandboxes():
    """The sandboxes of the kernels that programs of this machine have started."""
    with urllib.request.urlopen(URL + "/api/sessions") as answer:
        return [s["kernel"]["sandbox"] for s in json.load(answer) if s["path"].startswith("local/")]


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


class Kernel:
    def __init__(self):
        self.manager = KernelManager(kernel_name="farm")
        self.manager.start_kernel()
        self.connect()

    def connect(self):
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def run(self, code, **options):
        """Run code, and return its reply and its text."""
        text, others = [], []

        def hook(message):
            if message["msg_type"] == "stream":
                text.append(message["content"]["text"])
            else:
                others.append(message)

        reply = self.client.execute_interactive(code, timeout=PATIENCE, output_hook=hook, **options)
        self.others = others
        return reply["content"], "".join(text)


@pytest.fixture
def kernel():
    kernel = Kernel()
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel()
    until(lambda: not sandboxes())


def test_nbclient():
    book = notebook("import matplotlib.pyplot as plt\nprint('hi')\nplt.plot([1, 3])\nplt.show()\n6 * 7", "1 / 0", "x")
    NotebookClient(book, timeout=PATIENCE, startup_timeout=PATIENCE, kernel_name="farm", allow_errors=True).execute()
    assert types(book.cells[0]) == ["stream", "display_data", "execute_result"]
    assert types(book.cells[1]) == ["error"]
    until(lambda: not sandboxes())  # the end of the client is the kernel's


@every
def test_papermill(tmp_path):
    import papermill

    source, result = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    book = notebook("n = 1", "print(n * 2)")
    book.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(book, source)
    papermill.execute_notebook(source, result, parameters={"n": 21}, kernel_name="farm", language="python", progress_bar=False, start_timeout=PATIENCE)
    assert nbformat.read(result, 4).cells[-1]["outputs"][0]["text"] == "42\n"


def test_kernel(kernel):
    """Input, comms with buffers, interrupts, and a restart that keeps the files of the sandbox."""
    code = "print('Hello', input('name? '))"
    answers = []

    def answer(message):
        answers.append(message["content"]["prompt"])
        kernel.client.input("Ada")

    assert kernel.run(code, allow_stdin=True, stdin_hook=answer)[1] == "Hello Ada\n" and answers == ["name? "]
    kernel.run("from comm import create_comm\nc = create_comm(target_name='t', comm_id='w', data={}, buffers=[b'\\x00\\xff' * 200])")
    opened = [m for m in kernel.others if m["msg_type"] == "comm_open"]
    assert [bytes(b) for b in opened[0]["buffers"]] == [b"\x00\xff" * 200]

    waiting = kernel.client.execute("import time\nprint('begun', flush=True)\ntime.sleep(600)")
    while kernel.client.get_iopub_msg(timeout=PATIENCE)["msg_type"] != "stream":
        pass
    kernel.manager.interrupt_kernel()
    while (reply := kernel.client.get_shell_msg(timeout=PATIENCE))["parent_header"]["msg_id"] != waiting:
        pass
    assert reply["content"]["ename"] == "KeyboardInterrupt"

    kernel.run("x = 1\nopen('kept', 'w').write('here')")
    before = sandboxes()
    kernel.client.stop_channels()
    kernel.manager.restart_kernel()
    kernel.connect()
    assert kernel.run("print(open('kept').read(), 'x' in globals())")[1] == "here False\n"
    assert sandboxes() == before and len(before) == 1


def test_sandbox_ends(kernel):
    """The sandbox of a kernel ends, as an idle one does: the next cell says so, and runs in another one."""
    kernel.run("x = 1")
    before = sandboxes()
    request = urllib.request.Request(f"{URL.removesuffix('/jupyter')}/v1/sandboxes/{before[0]}?wait=60", method="DELETE")
    urllib.request.urlopen(request).close()
    until(lambda: not sandboxes())
    reply, text = kernel.run("print('x' in globals())")
    assert reply["status"] == "ok" and text.endswith("]\nFalse\n") and "new one" in text
    assert sandboxes() != before


def test_dead_client():
    """A client that is killed takes its kernel with it."""
    with subprocess.Popen([sys.executable, "-c", DOOMED], stdout=subprocess.PIPE) as client:
        assert client.stdout.readline() == b"started\n"
        assert len(sandboxes()) == 1
        client.send_signal(signal.SIGKILL)
    until(lambda: not sandboxes())


@every
def test_console(kernel):
    """`jupyter console` joins a kernel that runs."""
    kernel.run("x = 20")
    console = [sys.executable, "-m", "jupyter_console", "--existing", kernel.manager.connection_file, "--simple-prompt", "--ZMQTerminalInteractiveShell.kernel_timeout=120"]
    done = subprocess.run(console, input="print('sum', x + 22)\nexit\n", capture_output=True, text=True, timeout=PATIENCE)
    assert "sum 42" in done.stdout, done
    assert kernel.run("print(x)")[1] == "20\n"  # the console has left the kernel as it is
