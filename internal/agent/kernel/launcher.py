"""The agent's own Python kernel: ipykernel, with output through pipes instead of ZeroMQ.

For each execution the kernel creates two pipes and passes their read ends to the agent over an inherited socket, so that output of C code
and of child processes is captured, a slow reader slows the code down, and no output is attributed to another execution.
"""

import array
import asyncio
import base64
import builtins
import functools
import importlib
import json
import os
import signal
import socket
import struct
import sys
import threading
import types

import sandfarm_output as output  # next to this file, outside the search path of code
import sandfarm_probe as probe

sys.path[0] = ""
CONTROL = int(os.environ.pop("SANDFARM_CONTROL_FD"))
os.set_inheritable(CONTROL, False)

import warnings  # noqa: E402

import IPython  # noqa: E402
from ipykernel.displayhook import ZMQShellDisplayHook  # noqa: E402
from ipykernel.ipkernel import IPythonKernel  # noqa: E402
from ipykernel.jsonutil import encode_images, json_clean  # noqa: E402
from ipykernel.kernelapp import IPKernelApp  # noqa: E402
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell  # noqa: E402
from IPython.core.autocall import IPyAutocall  # noqa: E402
from traitlets import Any, Type  # noqa: E402

MAX_ERROR = 64 << 10  # characters of an error's text, and of each line of its traceback
MAX_ERROR_LINES = 200


class Control:
    """The socket to the agent: a length, then JSON; descriptors are attached. The agent answers displays with their number."""

    def __init__(self, fd):
        self.socket = socket.socket(fileno=fd)
        self.lock = threading.Lock()
        self.number = 0
        self.pid = os.getpid()

    def send(self, message, fds=()):
        body = json.dumps(message).encode("utf-8", "replace")
        data = struct.pack(">I", len(body)) + body
        with Shield(), self.lock:
            self._send(data, fds)

    def ask(self, message):
        with Shield(), self.lock:
            self.number = (self.number + 1) & 0xFFFFFFFF
            message["number"] = self.number
            body = json.dumps(message).encode("utf-8", "replace")
            self._send(struct.pack(">I", len(body)) + body, ())
            answer = b""
            while len(answer) < 4:
                part = self.socket.recv(4 - len(answer))
                if not part:
                    raise OSError("the agent is gone")
                answer += part

    def _send(self, data, fds):
        if fds:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            data = data[self.socket.sendmsg([data], rights) :]
        self.socket.sendall(data)


class Shield:
    """Delays interrupts while a message is being sent."""

    def __enter__(self):
        self.old = self.caught = None
        if threading.current_thread() is threading.main_thread():
            self.old = signal.signal(signal.SIGINT, self.catch)

    def catch(self, *_):
        self.caught = True

    def __exit__(self, *exc):
        if self.old is not None:
            signal.signal(signal.SIGINT, self.old)
            if self.caught and self.old is not signal.SIG_IGN:
                raise KeyboardInterrupt
        return False


def as_text(mime, value):
    """One representation of a displayed value as the agent expects it: text unchanged, other bytes in base64, objects as JSON."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        textual = mime.startswith("text/") or mime.endswith(("json", "xml", "javascript"))
        return str(value, "utf-8", "replace") if textual else base64.b64encode(value).decode("ascii")
    return value if isinstance(value, str) else json.dumps(value)


def show(bundle, display_id=None, update=False):
    """Sends a displayed value to the agent, after the output before it."""
    here = output.execution()
    if here is None or os.getpid() != control.pid:  # a fork must not send as the kernel
        return
    data = {str(mime): as_text(str(mime), value) for mime, value in bundle.items()}
    for sink in here.sinks:
        sink.flush()
    if data:
        control.ask({"op": "display", "id": here.ident, "data": data, "display_id": str(display_id or ""), "update": bool(update)})


class Publisher(ZMQDisplayPublisher):
    def publish(self, data, metadata=None, *args, transient=None, update=False, **kwargs):
        show(json_clean(encode_images(data)), (transient or {}).get("display_id"), update)

    def clear_output(self, wait=False):
        pass


class Hook(ZMQShellDisplayHook):
    def finish_displayhook(self):
        message, self.msg = self.msg, None
        if message:
            show(message["content"]["data"])


class Exit(IPyAutocall):
    """exit and quit: end the execution, not the kernel."""

    rewrite = False

    def __call__(self, code=None):
        raise SystemExit(code)

    def __repr__(self):
        return "Use exit() to end the execution"


class Shell(ZMQInteractiveShell):
    displayhook_class = Type(Hook)
    display_pub_class = Type(Publisher)
    exiter = Any()

    def _exiter_default(self):
        return Exit(self)

    def showtraceback(self, *args, **kwargs):
        kind, value = sys.exc_info()[:2]
        if kind is not None and issubclass(kind, SystemExit):
            here = output.execution()
            code = value.code
            if code is None:
                code = 0
            elif not isinstance(code, int):
                print(code, file=sys.stderr)
                code = 1
            if here is not None:
                here.exit_code = code & 0xFF
            return
        super().showtraceback(*args, **kwargs)


class Kernel(IPythonKernel):
    shell_class = Type(Shell)
    msg_types = [*IPythonKernel.msg_types, "sandfarm_probe"]
    _execute_sleep = 0
    _installed = 0

    async def sandfarm_probe(self, stream, ident, parent):
        """Answers the agent's questions about code and modules, between executions."""
        self.session.send(stream, "sandfarm_probe_reply", probe.answer(parent["content"]), parent, ident)

    async def do_execute(
        self, code, silent, store_history=True, user_expressions=None, allow_stdin=False, *, cell_meta=None, cell_id=None
    ):
        meta = (cell_meta or self.get_parent().get("metadata") or {}).get("sandfarm") or {}
        env = meta.get("env") or {}
        if meta.get("installed", 0) != self._installed:  # modules may have been installed since
            self._installed = meta["installed"]
            importlib.invalidate_caches()
        try:
            here = begin(meta.get("id", ""))
        except OSError as e:
            return failure(e, self.shell.execution_count)
        token = output.current.set(here)
        output.running = here
        saved = {name: os.environ.get(name) for name in [*env, "SBX_EXEC"]}
        try:
            os.environ.update(env)
            os.environ["SBX_EXEC"] = here.ident
            reply = await super().do_execute(code, silent, store_history, None, False)
        except (Exception, KeyboardInterrupt) as e:  # without a reply the execution would never end
            reply = failure(e, self.shell.execution_count)
        finally:
            # an interrupt for this execution may still arrive; it must not abort anything here
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            for name, value in saved.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            finish(here)
            output.running = None
            output.current.reset(token)
        clip(reply)
        reply["sandfarm_exit"] = here.exit_code
        reply["sandfarm_begun"] = True
        return reply


def clip(reply):
    """Bounds the text of an error: an exception may contain large user data."""
    if reply.get("status") == "error":
        reply["evalue"] = str(reply.get("evalue", ""))[:MAX_ERROR]
        reply["traceback"] = [str(line)[:MAX_ERROR] for line in reply.get("traceback", ())[-MAX_ERROR_LINES:]]


def failure(e, count):
    return {"status": "error", "ename": type(e).__name__, "evalue": str(e), "traceback": [], "execution_count": count}


def begin(ident):
    """Creates the pipes of an execution, puts them on descriptors 1 and 2, and sends their other ends to the agent."""
    out, err = os.pipe(), os.pipe()
    here = output.Execution(ident, (output.Sink(out[1]), output.Sink(err[1])))
    os.dup2(out[1], 1)
    os.dup2(err[1], 2)
    control.send({"op": "begin", "id": ident}, (out[0], err[0]))
    os.close(out[0])
    os.close(err[0])
    return here


def finish(here):
    """Ends the outputs of an execution: later output of its threads is discarded.

    The next execution prints as usual, even if this one replaced sys.stdout: ipykernel flushes sys.stdout before it
    answers, and a value that is None or closed would block the answer forever.
    """
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        output.flush(getattr(sys, name, None))
    sys.stdout, sys.stderr = streams
    libc_flush()
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for sink in here.sinks:
        sink.close()


def as_in_a_script():
    """Lets code written for a script run: asyncio.run, although the kernel's own loop runs, and argument parsers."""
    plain = asyncio.run

    @functools.wraps(plain)
    def run(main, **options):
        loop = asyncio._get_running_loop()
        if loop is None or loop is not kernel_loop():  # in the code's own loop it is an error, as usual
            return plain(main, **options)
        task = asyncio.current_task(loop)
        if task is not None:
            asyncio.tasks._leave_task(loop, task)
        asyncio._set_running_loop(None)
        try:
            return plain(main, **options)
        finally:
            asyncio.set_event_loop(loop)
            asyncio._set_running_loop(loop)
            if task is not None:
                asyncio.tasks._enter_task(loop, task)

    asyncio.run = run
    sys.argv[:] = [""]


def kernel_loop():
    """Returns the loop in which cells run."""
    return App.instance().io_loop.asyncio_loop


class App(IPKernelApp):
    name = "sandfarm"
    kernel_class = Type(Kernel)
    connection_dir = ""

    def init_io(self):
        sys.stdout, sys.stderr = streams
        self.displayhook = types.SimpleNamespace()
        self.patch_io()

    def reset_io(self):
        pass

    def log_connection_info(self):
        pass


control = Control(CONTROL)
streams = (output.Text(0), output.Text(1))
nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
libc_flush = output.find_libc_flush()


def main():
    output.inherit_executions()
    output.survive_forks()
    output.flusher = output.Flusher()
    output.flusher.start()
    app = App.instance()
    app.config.HistoryManager.enabled = False
    app.config.InteractiveShell.colors = "nocolor" if IPython.version_info[0] >= 9 else "NoColor"
    app.config.InteractiveShell.xmode = "Context"
    app.config.IPKernelApp.quiet = True
    app.initialize(["-f", sys.argv[sys.argv.index("-f") + 1]])
    as_in_a_script()
    for name in ("exit", "quit"):
        app.shell.user_ns[name] = app.shell.user_ns_hidden[name] = app.shell.exiter
    builtins.exit = builtins.quit = app.shell.exiter
    warnings.filterwarnings("ignore", message="To exit: use")
    # The threads belong to the kernel, and survive_forks handles them.
    warnings.filterwarnings("ignore", message=r"This process \(pid=\d+\) is multi-threaded", category=DeprecationWarning)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    control.send({"op": "ready"})
    app.start()


main()
