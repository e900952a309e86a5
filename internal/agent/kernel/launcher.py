"""The agent's Python kernel: IPython's shell, driven over the inherited socket to the agent. Its output goes through pipes.

For each execution the kernel creates two pipes and passes their read ends to the agent, so that output of C code and of child processes
is captured, a slow reader slows the code down, and no output is attributed to another execution. Cells run on one asyncio loop
that lives as long as the kernel.
"""

import array
import asyncio
import builtins
import collections
import functools
import getpass
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import threading

import sandfarm_output as output  # next to this file, outside the search path of code

FOLDER, sys.path[0] = sys.path[0], ""
CONTROL = 3  # the agent starts the kernel with its socket there
LARGEST = 48 << 20  # bytes of a message, as maxControlBytes of control.go: the agent ends a kernel that sends more
INPUT_POLL = 0.1  # seconds between two looks for a line of input
os.set_inheritable(CONTROL, False)  # children do not speak with the agent


def own_module(name):
    """Imports a module next to this file."""
    sys.path.insert(0, FOLDER)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(FOLDER)


shells = own_module("sandfarm_shell")

import IPython  # noqa: E402
from IPython.core.async_helpers import _asyncio_runner, _pseudo_sync_runner  # noqa: E402
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult  # noqa: E402
from traitlets.config import Config  # noqa: E402


class Control:
    """The socket to the agent. A message is a length, then JSON; descriptors are attached.

    The kernel's loop reads it. A thread that has displayed a value reads it too, until the agent has answered that it has the value and
    the output before it: later output must not overtake the value.
    """

    def __init__(self, fd):
        self.socket = socket.socket(fileno=fd)
        self.lock = threading.RLock()
        self.data = bytearray()
        self.inbox = collections.deque()  # messages that nobody has taken
        self.waiter = None  # the future of the loop, while it waits for a message
        self.number = self.shown = 0
        self.pid = os.getpid()

    def send(self, message, fds=()):
        with Shield(), self.lock:
            self._send(message, fds)

    def ask(self, message):
        """Sends a message and waits until the agent has answered it."""
        with Shield(), self.lock:
            self.number += 1
            number = message["number"] = self.number
            self._send(message)
            while self.shown < number:
                self._fill(0)
        if self.inbox:
            loop.call_soon_threadsafe(self._wake)

    def question(self, prompt, password):
        """Asks a notebook for a line, and waits for it. An interrupt ends the wait."""
        number = send_message("input_request", {"prompt": prompt, "password": password})
        while True:
            with Shield(), self.lock:
                try:
                    self._fill(socket.MSG_DONTWAIT)
                except BlockingIOError:
                    pass
                for message in list(self.inbox):
                    if message["op"] == "input":
                        self.inbox.remove(message)
                        if message["number"] == number:  # else nobody waits for it any more
                            return message["value"]
            select.select([self.socket], [], [], INPUT_POLL)  # another thread may read the answer

    def _send(self, message, fds=()):
        body = json.dumps(message).encode()
        if len(body) > LARGEST:
            body = json.dumps(left_out(message, len(body))).encode()
        data = struct.pack(">I", len(body)) + body
        if fds:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            data = data[self.socket.sendmsg([data], rights) :]
        self.socket.sendall(data)

    def _fill(self, flags):
        """Reads what has arrived."""
        part = self.socket.recv(1 << 18, flags)
        if not part:
            os._exit(0)  # the agent is gone
        self.data += part
        while len(self.data) >= 4:
            size = 4 + int.from_bytes(self.data[:4], "big")
            if len(self.data) < size:
                break
            message = json.loads(self.data[4:size])
            del self.data[:size]
            if message["op"] == "shown":
                self.shown = message["number"]
            else:
                self.inbox.append(message)

    def readable(self):
        """Runs on the loop when there is something to read."""
        if self.lock.acquire(blocking=False):  # else a thread reads
            try:
                self._fill(socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            finally:
                self.lock.release()
            self._wake()

    def _wake(self):
        if self.inbox and self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def next(self):
        while not self.inbox:
            self.waiter = loop.create_future()
            await self.waiter
        return self.inbox.popleft()


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
                if callable(self.old) and self.old is not signal.default_int_handler:
                    self.old(signal.SIGINT, None)
                else:
                    raise KeyboardInterrupt
        return False


def left_out(message, size):
    """A message that says that this one, of so many bytes, was too large."""
    text = "[%s of %d bytes was left out: at most %d fit]" % ("a displayed value" if "data" in message else "a message", size, LARGEST)
    if "data" in message:
        return {**message, "data": {"text/plain": text}, "metadata": {}}
    if message["op"] == "message":
        return {**message, "kind": "stream", "content": {"name": "stderr", "text": text + "\n"}}
    content = message["content"] if message["op"] == "reply" else {"status": "error"}  # what is long of a reply is its error
    return {**message, "content": {**content, "ename": "ValueError", "evalue": text, "traceback": []}}


def send_event(message):
    """Sends a message of the execution in whose context the caller runs, after the output before it."""
    here = output.execution()
    if here is None or os.getpid() != control.pid:  # a fork must not send as the kernel
        return
    for sink in here.sinks:
        sink.flush()
    if here.send is not None:
        here.send(*shells.display.as_message(message))
        return
    message["id"] = here.ident
    control.ask(message)


def send(message):
    """Sends a message that belongs to no execution."""
    if os.getpid() == control.pid:
        control.send(message)


def send_message(kind, content):
    """Sends a notebook a message that is no output of an execution. It returns the number of one that an execution sends."""
    here = output.execution()
    message = {"op": "message", "kind": kind, "parent": here.message if here else "", "content": content}
    if here is None or here.send is not None:
        send(message)
        return 0
    for sink in here.sinks:  # it keeps its place among the execution's output: the agent reads both before more is printed
        sink.flush()
    message["id"] = here.ident
    if os.getpid() == control.pid:
        control.ask(message)
    return message.get("number", 0)


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

    The next execution prints as usual, even if this one replaced sys.stdout.
    """
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        output.flush(getattr(sys, name, None))
    sys.stdout, sys.stderr = streams
    libc_flush()
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for sink in here.sinks:
        sink.close()


async def execute(message):
    """Runs one execution and returns its reply."""
    global installed
    if message.get("installed", 0) != installed:  # modules may have been installed since
        installed = message["installed"]
        importlib.invalidate_caches()
    if message.get("data") or "sandfarm_data" in sys.modules:
        own_module("sandfarm_data").switch(shell, bool(message.get("data")))
    ident, env = message["id"], message.get("env") or {}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        here = begin(ident)
    except OSError as error:
        return {**shells.failure(error), "id": ident, "begun": False}
    cell = message.get("cell") or {}
    if cell:
        here.message, here.session, here.answers = cell["message"], cell.get("session", ""), cell.get("input", False)
    token = output.current.set(here)
    output.running = here
    saved = {name: os.environ.get(name) for name in [*env, "SBX_EXEC"]}
    file, before = message.get("file"), (sys.argv, shell.user_ns.get("__file__"))
    try:
        if file:
            sys.argv, shell.user_ns["__file__"], shell.compile.file = [file], file, file
        os.environ.update(env)
        os.environ["SBX_EXEC"] = ident
        builtins.input, getpass.getpass = read_line, read_password  # code may have replaced them
        reply = shell.outcome(await run_cell(message["code"], cell.get("silent", False), not cell.get("no_history", False)))
    except (Exception, KeyboardInterrupt, asyncio.CancelledError) as error:  # without a reply the execution would never end
        reply = shells.failure(error)
    finally:
        # an interrupt for this execution may still arrive; it must not abort anything here
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if file:
            sys.argv, shell.user_ns["__file__"], shell.compile.file = *before, None
            if before[1] is None:
                del shell.user_ns["__file__"]
        finish(here)
        output.running = None
        output.current.reset(token)
    return {"execution_count": shell.execution_count - 1, **reply, "id": ident, "exit": here.exit_code, "begun": True}


async def run_cell(code, silent, counted):
    """Runs a cell, as a task of the loop if it awaits anything."""
    shell.begin_cell()
    broken, result = None, None
    try:
        cell = shell.transform_cell(code)
    except Exception:
        cell, broken = code, sys.exc_info()
    awaits = shell.should_run_async(code, transformed_cell=cell, preprocessing_exc_tuple=broken)
    coroutine = shell.run_cell_async(code, store_history=counted, silent=silent, transformed_cell=cell, preprocessing_exc_tuple=broken)
    try:
        if not awaits:
            result = _pseudo_sync_runner(coroutine)
        elif shell.loop_runner is _asyncio_runner:
            result = await interruptible(loop.create_task(coroutine))
        else:  # a loop of the user's choice
            result = shell.loop_runner(coroutine)
    except (Exception, KeyboardInterrupt, asyncio.CancelledError) as error:
        shell.result = result = ExecutionResult(ExecutionInfo(code, True, False, True, None, None, transformed_cell=cell))
        result.error_in_exec = error
        error.__traceback__ = error.__traceback__.tb_next  # not this function
        shell.showtraceback(running_compiled_code=True)
    finally:
        shell.events.trigger("post_execute")
        if not silent:
            shell.events.trigger("post_run_cell", result)
    return result


async def interruptible(task):
    """Awaits a task. An interrupt ends the code that runs at that moment, and cancels the task if that is not its own code."""

    def interrupt(*_):
        running = asyncio.current_task(loop)
        if running is not task:
            loop.call_soon_threadsafe(task.cancel)
        if running is not None:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    return await task


def as_in_a_script():
    """Lets code written for a script run: asyncio.run, although the kernel's own loop runs, and argument parsers."""
    plain = asyncio.run

    @functools.wraps(plain)
    def run(main, **options):
        here = asyncio._get_running_loop()
        if here is None or here is not loop:  # in the code's own loop it is an error, as usual
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


async def serve():
    """Serves the messages of the agent, one at a time."""
    while True:
        message = await control.next()
        if message["op"] == "execute":
            reply = await execute(message)
            if os.getpid() != control.pid:  # a fork that ran to the end of the cell
                os._exit(reply["exit"] if reply["exit"] is not None else int(reply["status"] != "ok"))
            control.send({"op": "reply", "content": reply})
        elif message["op"] == "ask":
            try:
                content = ask(message["kind"], message["content"], message.get("message", ""))
            except Exception as error:
                content = {"status": "error", **shells.failure(error)}
            control.send({"op": "answer", "number": message["number"], "content": content})


def ask(kind, content, message):
    """Answers a question of the agent, between executions."""
    if kind == "probe":
        return own_module("sandfarm_probe").answer(content)
    here = output.Handling(message, send_message)
    token = output.current.set(here)
    output.running = here
    try:
        return own_module("sandfarm_jupyter").answer(shell, kind, content)
    finally:
        for sink in here.sinks:
            sink.flush()
        output.running = None
        output.current.reset(token)


def read_line(prompt="", *args, **kwargs):
    """input: asks the notebook, if one has said that it answers."""
    return question(str(prompt), False)


def read_password(prompt="Password: ", stream=None, **kwargs):
    """getpass: asks the notebook."""
    return question(str(prompt), True)


def question(prompt, password):
    here = output.execution()
    if here is None or not getattr(here, "answers", False) or os.getpid() != control.pid:
        shells.no_password() if password else shells.no_input()
    for sink in here.sinks:
        sink.flush()
    return control.question(prompt, password)


def create_comm(*args, **kwargs):
    """Makes a comm, for the package comm."""
    return own_module("sandfarm_jupyter").Comm(*args, **kwargs)


def main():
    output.inherit_executions()
    output.survive_forks()
    output.flusher = output.Flusher()
    output.flusher.start()
    as_in_a_script()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    control.send({"op": "ready"})
    loop.add_reader(CONTROL, control.readable)
    task = loop.create_task(serve())
    while not task.done():
        try:
            loop.run_until_complete(task)
        except (Exception, KeyboardInterrupt, SystemExit):  # of a task of the code, which must not end the kernel
            pass


control = Control(CONTROL)
streams = sys.stdout, sys.stderr = output.Text(0), output.Text(1)
nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
libc_flush = output.find_libc_flush()
installed = 0
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
config = Config()
config.HistoryManager.enabled = False
config.InteractiveShell.colors = "nocolor" if IPython.version_info[0] >= 9 else "NoColor"
config.InteractiveShell.xmode = "Context"
shell = shells.make(config, send_event, send_message)
try:
    import comm
except ImportError:  # nothing here uses comms
    pass
else:
    comm.create_comm = create_comm
main()
