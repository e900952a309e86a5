"""The outputs of executions: each execution prints into its own pipes, from any of its threads, tasks and child processes."""

import contextvars
import io
import os
import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

BUFFER = 32 << 10
DELAY = 0.005  # seconds that a line may wait for the next ones
PIECE = 1 << 20  # characters encoded at once


class Flusher(threading.Thread):
    """Flushes the buffers after a burst of short lines. A line after a pause is written at once; lines soon after it are batched,
    since a write for each costs more than the printing."""

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
    """One output of one execution: the write end of a pipe and the data not yet written to it."""

    def __init__(self, fd):
        self.fd = fd
        self.lock = threading.RLock()
        self.reset()
        self.last = 0.0  # when it was flushed

    def reset(self):
        self.buffer = bytearray()
        self.texts = []  # after the buffer: encoded together, since encoding is the largest cost of a short line
        self.size = 0  # bytes in the buffer and, at least, in the texts
        self.armed = False  # a flush is scheduled

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
        """Flushes large data, or a line after a pause; leaves the rest to the flusher."""
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
    """The state of one execution."""

    send = None  # displayed values are the execution's

    def __init__(self, ident, sinks):
        self.ident = ident
        self.sinks = sinks
        self.exit_code = None
        self.message, self.session, self.answers = ident, "", False  # a notebook's ids of its message; it answers questions for input


class Part:
    """One output of what runs beside executions: text goes to the notebook as messages."""

    def __init__(self, name, send):
        self.name, self.send = name, send
        self.lock = threading.RLock()
        self.reset()

    def reset(self):
        self.data = bytearray()

    def text(self, text):
        self.write(text.encode("utf-8", "backslashreplace"))

    def write(self, data):
        with self.lock:
            self.data += data
            if len(self.data) >= BUFFER:
                self.flush()

    def flush(self):
        with self.lock:
            data, self.data = bytes(self.data), bytearray()
            if data:
                self.send("stream", {"name": self.name, "text": data.decode("utf-8", "replace")})


class Handling:
    """What handles a message of a notebook beside executions, as an execution sees itself."""

    exit_code = None

    def __init__(self, message, send):
        self.ident = self.message = message
        self.session = ""
        self.send = send
        self.sinks = Part("stdout", send), Part("stderr", send)


current = contextvars.ContextVar("sandfarm_execution", default=None)
flusher = None  # None before the kernel is up, and in a fork
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


def flush(stream):
    try:
        stream.flush()
    except BaseException:  # the code may have replaced the stream with anything
        pass


def find_libc_flush():
    """Flushes the buffers of C code."""
    try:
        import ctypes

        function = ctypes.CDLL(None).fflush
        return lambda: function(None)
    except Exception:
        return lambda: None


def inherit_executions():
    """Threads, and tasks of a pool, belong to the execution that started them, and print nothing once it has ended.

    A new thread has no context variables of the thread that starts it, and a pool runs the tasks of one execution on the threads that an
    earlier one has started.
    """
    start, bootstrap, submit = threading.Thread.start, threading.Thread._bootstrap_inner, ThreadPoolExecutor.submit

    def thread_start(self):
        self._sandfarm = current.get()
        return start(self)

    def thread_bootstrap(self):
        current.set(getattr(self, "_sandfarm", None))
        return bootstrap(self)

    def pool_submit(self, fn, /, *args, **kwargs):
        here = current.get()

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
    """What was printed before a child starts precedes what the child prints, and is written once."""

    def before():
        here = execution()
        for sink in here.sinks if here else ():
            sink.flush()

    def after():
        global flusher
        flusher = None  # the thread is missing in a fork
        here = execution()
        for sink in here.sinks if here else ():
            sink.lock = threading.RLock()  # a thread that is missing here may have held the lock
            sink.reset()  # or have printed since: the parent writes that

    os.register_at_fork(before=before, after_in_child=after)
    starts = frozenset(("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"))

    def audit(event, _):  # these run no handlers of forks, and a program that replaces this one writes directly into the pipe
        if event in starts:
            before()

    sys.addaudithook(audit)
    leave = os._exit

    def leave_written(status):  # it flushes nothing, and the last output usually explains the exit
        before()
        leave(status)

    os._exit = leave_written
