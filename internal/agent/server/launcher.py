"""The agent's own Python kernel: ipykernel, with output through pipes instead of ZeroMQ.

For each execution the kernel makes two pipes and hands their read ends to the agent over a socket it has inherited, so that output of C
code and of child processes is caught, a slow reader slows the code down, and nothing is ever filed under another execution.
"""

import array
import builtins
import contextvars
import importlib
import io
import json
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
import types

import sandfarm_probe as probe  # beside this file, which code cannot import from

sys.path[0] = ""
CONTROL = int(os.environ.pop("SANDFARM_CONTROL_FD"))
os.set_inheritable(CONTROL, False)

import warnings  # noqa: E402
from concurrent.futures import ThreadPoolExecutor  # noqa: E402

import IPython  # noqa: E402
from ipykernel.displayhook import ZMQShellDisplayHook  # noqa: E402
from ipykernel.ipkernel import IPythonKernel  # noqa: E402
from ipykernel.jsonutil import encode_images, json_clean  # noqa: E402
from ipykernel.kernelapp import IPKernelApp  # noqa: E402
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell  # noqa: E402
from IPython.core.autocall import IPyAutocall  # noqa: E402
from traitlets import Any, Type  # noqa: E402

BUFFER = 32 << 10
DELAY = 0.005  # seconds that a line may wait for the next ones
TELLABLE = 64 << 10  # characters of an error's text, and of each line of its traceback
TELLABLE_LINES = 200
PIECE = 1 << 20  # characters encoded at once


class Control:
    """The socket to the agent: a length, then JSON; descriptors ride along. The agent answers displays with their number."""

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
    """Holds an interrupt back while a message is on its way."""

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


class Flusher(threading.Thread):
    """Writes out what a burst of short lines has left in buffers. A line after a pause is written at once; those close behind it wait for
    company, since a write for each costs the code more than the printing."""

    def __init__(self):
        super().__init__(name="sandfarm-flusher", daemon=True)
        self.sinks = queue.SimpleQueue()

    def run(self):
        while True:
            sink = self.sinks.get()
            time.sleep(DELAY)
            sink.armed = False
            sink.flush()


class Sink:
    """One output of one execution: the write end of a pipe and what is not yet in it."""

    def __init__(self, fd):
        self.fd = fd
        self.lock = threading.RLock()
        self.reset()
        self.last = 0.0  # when it was flushed

    def reset(self):
        self.buffer = bytearray()
        self.texts = []  # behind the buffer: encoded together, since that is what a short line costs most
        self.size = 0  # bytes in the buffer and, at least, in the texts
        self.armed = False  # the flusher will come

    def text(self, text):
        with self.lock:
            if self.fd >= 0:
                self.texts.append(text)
                self.size += len(text)
                line = "\n" in text
                if line or self.size >= BUFFER or not self.armed:
                    self.settle(line)

    def write(self, data):
        with self.lock:
            if self.fd < 0:
                return
            if len(data) >= BUFFER:
                self.flush()
                self.push(data)
                return
            self.encode()
            self.buffer += data
            self.size += len(data)
            self.settle(b"\n" in data)

    def settle(self, line):
        """Flushes what is much, or a line after a pause; leaves the rest to the flusher."""
        if self.size >= BUFFER or (line and (flusher is None or time.monotonic() - self.last >= DELAY)):
            self.flush()
        elif not self.armed and flusher is not None:
            self.armed = True
            flusher.sinks.put(self)

    def encode(self):
        texts, self.texts = self.texts, []
        self.buffer += "".join(texts).encode("utf-8", "backslashreplace")

    def flush(self):
        with self.lock:
            self.encode()
            data, self.buffer, self.size = self.buffer, bytearray(), 0
            self.last = time.monotonic()
            self.push(data)

    def push(self, data):
        view = memoryview(data)
        while view and self.fd >= 0:
            try:
                view = view[os.write(self.fd, view) :]
            except OSError:
                return

    def close(self):
        with self.lock:
            try:
                self.flush()
            finally:
                if self.fd >= 0:
                    os.close(self.fd)
                self.fd = -1


class Execution:
    """What belongs to one execution."""

    def __init__(self, ident, sinks):
        self.ident = ident
        self.sinks = sinks
        self.exit_code = None


current = contextvars.ContextVar("sandfarm_execution", default=None)
flusher = None  # none before the kernel is up, and none in a fork
running = None  # the execution that runs now: for threads that Python did not start


def execution():
    return current.get() or running


class Bytes(io.BufferedIOBase):
    """The .buffer of a stream."""

    def __init__(self, index):
        self.index = index

    def write(self, data):
        here = execution()
        data = bytes(data)
        if here is not None:
            here.sinks[self.index].write(data)
        return len(data)

    def flush(self):
        here = execution()
        if here is not None:
            here.sinks[self.index].flush()

    def writable(self):
        return True

    def fileno(self):
        return self.index + 1

    def isatty(self):
        return False

    def close(self):
        self.flush()

    @property
    def raw(self):
        return self


class Text(io.TextIOBase):
    """sys.stdout or sys.stderr: writes to the execution in whose context the caller runs."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None
    line_buffering = True
    write_through = False

    def __init__(self, index):
        self.index = index
        self.bytes = Bytes(index)
        self.name = ("<stdout>", "<stderr>")[index]
        self.mode = "w"

    @property
    def buffer(self):
        return self.bytes

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        here = current.get() or running
        if here is not None:
            sink = here.sinks[self.index]
            if len(text) <= PIECE:
                sink.text(text)
                return len(text)
            with sink.lock:
                for i in range(0, len(text), PIECE):
                    sink.text(text[i : i + PIECE])
        return len(text)

    def flush(self):
        self.bytes.flush()

    def writable(self):
        return True

    def fileno(self):
        return self.index + 1

    def isatty(self):
        return False

    def reconfigure(self, **_):
        pass

    def close(self):
        self.flush()

    def detach(self):
        return self.bytes


def show(bundle):
    """Sends a display to the agent, after the output before it."""
    here = execution()
    if here is None or os.getpid() != control.pid:  # a fork must not speak for the kernel
        return
    data = {}
    for mime, value in bundle.items():
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        data[str(mime)] = value if isinstance(value, str) else json.dumps(value)
    for sink in here.sinks:
        sink.flush()
    if data:
        control.ask({"op": "display", "id": here.ident, "data": data})


class Publisher(ZMQDisplayPublisher):
    def publish(self, data, metadata=None, *args, transient=None, update=False, **kwargs):
        show(json_clean(encode_images(data)))

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
            here = execution()
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
        global running
        meta = (cell_meta or self.get_parent().get("metadata") or {}).get("sandfarm") or {}
        env = meta.get("env") or {}
        if meta.get("installed", 0) != self._installed:  # what was not there may be now
            self._installed = meta["installed"]
            importlib.invalidate_caches()
        try:
            here = begin(meta.get("id", ""))
        except OSError as e:
            return failure(e, self.shell.execution_count)
        token = current.set(here)
        running = here
        saved = {name: os.environ.get(name) for name in [*env, "SANDFARM_EXEC"]}
        try:
            os.environ.update(env)
            os.environ["SANDFARM_EXEC"] = here.ident
            reply = await super().do_execute(code, silent, store_history, None, False)
        except (Exception, KeyboardInterrupt) as e:  # without a reply the execution would never end
            reply = failure(e, self.shell.execution_count)
        finally:
            # an interrupt meant for this execution may still come; nothing here may be cut short by it
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            for name, value in saved.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            finish(here)
            running = None
            current.reset(token)
        clip(reply)
        reply["sandfarm_exit"] = here.exit_code
        reply["sandfarm_begun"] = True
        return reply


def clip(reply):
    """Keeps the text of an error to what can be told: an exception may carry the whole of somebody's data."""
    if reply.get("status") == "error":
        reply["evalue"] = str(reply.get("evalue", ""))[:TELLABLE]
        reply["traceback"] = [str(line)[:TELLABLE] for line in reply.get("traceback", ())[-TELLABLE_LINES:]]


def failure(e, count):
    return {"status": "error", "ename": type(e).__name__, "evalue": str(e), "traceback": [], "execution_count": count}


def begin(ident):
    """Makes the pipes of an execution, puts them on descriptors 1 and 2, and gives their other ends to the agent."""
    out, err = os.pipe(), os.pipe()
    here = Execution(ident, (Sink(out[1]), Sink(err[1])))
    os.dup2(out[1], 1)
    os.dup2(err[1], 2)
    control.send({"op": "begin", "id": ident}, (out[0], err[0]))
    os.close(out[0])
    os.close(err[0])
    return here


def finish(here):
    """Ends the outputs of an execution: what its threads write later goes nowhere.

    The next execution prints as usual, whatever this one has put in the place of sys.stdout: ipykernel flushes it before it
    answers, and one that is None or closed would keep the answer back for ever.
    """
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        flush(getattr(sys, name, None))
    sys.stdout, sys.stderr = streams
    libc_flush()
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for sink in here.sinks:
        sink.close()


def flush(stream):
    try:
        stream.flush()
    except BaseException:  # whatever the code has put there
        pass


def find_libc_flush():
    """C code has buffers of its own."""
    try:
        import ctypes

        function = ctypes.CDLL(None).fflush
        return lambda: function(None)
    except Exception:
        return lambda: None


def inherit_executions():
    """Threads and tasks of a pool belong to the execution that started them."""
    start, bootstrap, submit = threading.Thread.start, threading.Thread._bootstrap_inner, ThreadPoolExecutor.submit

    def thread_start(self):
        self._sandfarm = current.get()
        return start(self)

    def thread_bootstrap(self):
        current.set(getattr(self, "_sandfarm", None))
        return bootstrap(self)

    def pool_submit(self, fn, /, *args, **kwargs):
        here = current.get()
        if here is None:
            return submit(self, fn, *args, **kwargs)

        def call(*args, **kwargs):
            token = current.set(here)
            try:
                return fn(*args, **kwargs)
            finally:
                current.reset(token)

        return submit(self, call, *args, **kwargs)

    threading.Thread.start = thread_start
    threading.Thread._bootstrap_inner = thread_bootstrap
    ThreadPoolExecutor.submit = pool_submit


def survive_forks():
    """A fork must not write again what is in the buffers, nor wait for threads that it does not have."""

    def before():
        here = execution()
        for sink in here.sinks if here else ():
            sink.flush()

    def after():
        global flusher
        flusher = None
        here = execution()
        for sink in here.sinks if here else ():
            sink.lock = threading.RLock()
            sink.reset()

    os.register_at_fork(before=before, after_in_child=after)
    starts = frozenset(("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"))

    def audit(event, _):  # a child writes straight into the pipe: what was printed before it comes first
        if event in starts:
            before()

    sys.addaudithook(audit)
    leave = os._exit

    def leave_written(status):  # what was printed just before the end is what says why
        before()
        leave(status)

    os._exit = leave_written


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
streams = (Text(0), Text(1))
nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
libc_flush = find_libc_flush()


def main():
    global flusher
    inherit_executions()
    survive_forks()
    flusher = Flusher()
    flusher.start()
    app = App.instance()
    app.config.HistoryManager.enabled = False
    app.config.InteractiveShell.colors = "nocolor" if IPython.version_info[0] >= 9 else "NoColor"
    app.config.InteractiveShell.xmode = "Context"
    app.config.IPKernelApp.quiet = True
    app.initialize(["-f", sys.argv[sys.argv.index("-f") + 1]])
    for name in ("exit", "quit"):
        app.shell.user_ns[name] = app.shell.user_ns_hidden[name] = app.shell.exiter
    builtins.exit = builtins.quit = app.shell.exiter
    warnings.filterwarnings("ignore", message="To exit: use")
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    control.send({"op": "ready"})
    app.start()


main()
