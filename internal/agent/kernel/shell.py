"""IPython's shell as the kernel uses it: where errors and pages go, and what libraries ask of a notebook's shell."""

import os
import struct
import sys
import warnings
import zlib
from contextlib import nullcontext

from IPython.core import page
from IPython.core.autocall import IPyAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.display_functions import clear_output
from IPython.core.error import StdinNotImplementedError, UsageError
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell, InteractiveShellABC
from IPython.core.magic import Magics, line_magic, magics_class
from traitlets import Any, Type

import sandfarm_display as display  # next to this file, outside the search path of code
import sandfarm_output as output

FOLDER = os.path.dirname(__file__)
MAX_ERROR = 1 << 20  # characters of an error's text; the agent cuts it by bytes
MAX_ERROR_LINE = 64 << 10  # characters of each line of its traceback
MAX_ERROR_LINES = 200


class Exit(IPyAutocall):
    """exit and quit: end the execution, not the kernel."""

    rewrite = False

    def __call__(self, code=None):
        raise SystemExit(code)

    def __repr__(self):
        return "Use exit() to end the execution"


class Compiler(CachingCompiler):
    """Gives cells names of files: the same as Jupyter's kernel, since warnings and syntax errors show them."""

    file = None  # that the code of the next cell is from

    def __init__(self):
        super().__init__()
        self.reset_compiler_flags()  # without that of consoles, by which code that ends early has an error of its own kind

    def cache(self, *args, **kwargs):
        name = super().cache(*args, **kwargs)
        if name == self.file:
            del self._filename_map[name]  # errors name the file, not the cell
            self.file = None  # of this cell, not of the cells within it
        return name

    def get_code_name(self, raw_code, transformed_code, number):
        return self.file or f"/tmp/ipykernel_{os.getpid()}/{name_of(raw_code.encode('utf-8', 'replace'))}.py"


def name_of(code):
    """MurmurHash2. Long code has another name than in Jupyter's kernel, since this takes a second for some megabytes."""
    if len(code) > 64 << 10:
        return zlib.crc32(code)
    value, factor, whole = 0xC70F6907 ^ len(code), 0x5BD1E995, len(code) & ~3
    for (part,) in struct.iter_unpack("<I", code[:whole]):
        part = part * factor & 0xFFFFFFFF
        part = (part ^ part >> 24) * factor & 0xFFFFFFFF
        value = value * factor & 0xFFFFFFFF ^ part
    if code[whole:]:
        value = (value ^ int.from_bytes(code[whole:], "little")) * factor & 0xFFFFFFFF
    value = (value ^ value >> 13) * factor & 0xFFFFFFFF
    return value ^ value >> 15


class History(HistoryManager):
    """The history of this kernel, in memory: there is no database."""

    def lines(self, raw, output):
        inputs = self.input_hist_raw if raw else self.input_hist_parsed
        for number in range(1, len(inputs)):
            line = inputs[number]
            yield 0, number, (line, self.output_hist_reprs.get(number)) if output else line

    def get_tail(self, n=10, raw=True, output=False, include_latest=False):
        lines = list(self.lines(raw, output))
        lines = lines if include_latest else lines[:-1]
        return lines[-n:] if n else lines

    def search(self, pattern="*", raw=True, search_raw=True, output=False, n=None, unique=False):
        from fnmatch import fnmatchcase

        searched = self.input_hist_raw if search_raw else self.input_hist_parsed
        found = [row for row in self.lines(raw, output) if fnmatchcase(searched[row[1]], pattern)]
        if unique:
            found = sorted({str(row[2]): row for row in found}.values(), key=lambda row: row[1])
        return found[-n:] if n else found


@magics_class
class KernelMagics(Magics):
    """The magics that Jupyter's kernel has beside IPython's."""

    @line_magic
    def clear(self, arg):
        """Clear the output of the cell."""
        clear_output()

    @line_magic
    def less(self, arg):
        """Show a file."""
        if not arg:
            raise UsageError("Missing filename.")
        with open(arg, errors="replace") as file:
            page.page(file.read())

    more = line_magic("more")(less)

    @line_magic
    def man(self, arg):
        """Show the manual page of a command."""
        page.page(self.shell.getoutput(f"man {arg} | col -b", split=False))

    @line_magic
    def connect_info(self, arg):
        """Say how to connect to this kernel."""
        print("This kernel has no connection file and no ports: code reaches it through Sandfarm's API only.")

    @line_magic
    def qtconsole(self, arg):
        """There is no console."""
        print("This kernel has no connection file and no ports, so no console can be opened.")

    @line_magic
    def autosave(self, arg):
        """There is no notebook."""
        print("There is no notebook here that could be saved.")

    @line_magic
    def subshell(self, arg):
        """There are no subshells."""
        print("Kernel does not support subshells")

    @line_magic
    def edit(self, arg):
        """There is no editor."""
        print("There is no editor here: write the file with %%writefile, and run it with %run.")

    ed = line_magic("ed")(edit)


class ZMQInteractiveShell(InteractiveShell):
    """The shell. Libraries look for its name and its module to find out that they run in a notebook."""

    __module__ = "ipykernel.zmqshell"
    displayhook_class = Type(display.Hook)
    display_pub_class = Type(display.Publisher)
    compiler_class = Type(Compiler)
    autoindent = False
    exiter = Any()
    kernel = Any()
    send_event = Any()  # sends a message of the running execution to the agent, after its output
    send = Any()  # sends another message
    pid = os.getpid()

    def _exiter_default(self):
        return Exit(self)

    def init_history(self):
        self.history_manager = History(shell=self, parent=self)
        self.configurables.append(self.history_manager)

    def init_virtualenv(self):
        pass

    def init_environment(self):
        os.environ.update(TERM="xterm-color", CLICOLOR="1", FORCE_COLOR="1", CLICOLOR_FORCE="1", PAGER="cat", GIT_PAGER="cat")
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")

    def init_hooks(self):
        super().init_hooks()
        self.set_hook("show_in_pager", page.as_hook(self.show_page), 99)

    def init_magics(self):
        super().init_magics()
        self.register_magics(KernelMagics)
        self.magics_manager.register_lazy("store", "IPython.extensions.storemagic")

    def enable_gui(self, gui=None):
        if gui not in (None, "inline", "asyncio"):
            raise UsageError(f"There is no display for the GUI {gui!r} in a sandbox: use %matplotlib inline.")
        self.active_eventloop = gui

    def ask_exit(self):
        pass

    def _tee(self, channel):
        """IPython would keep a copy of all output for %notebook, without a limit."""
        return nullcontext()

    def system_piped(self, cmd):
        if cmd.rstrip().endswith("&"):
            raise OSError("Background processes not supported.")
        from IPython.utils.process import system

        code = system(self.var_expand(cmd, depth=1))
        self.user_ns["_exit_code"] = code
        if getattr(self, "system_raise_on_error", False) and code != 0:
            from subprocess import CalledProcessError

            raise CalledProcessError(code, cmd)

    system = system_piped

    def get_parent(self):
        return self.kernel.get_parent()

    parent_header = property(get_parent)

    # --- what is shown -----------------------------------------------------------------------------------------------

    def show_page(self, text, start=0, screen_lines=0, pager_cmd=None):
        """Prints what IPython would show in a pager, such as help. Code that catches what it prints does not catch this."""
        text = text.get("text/plain", "") if isinstance(text, dict) else text
        self.write(0, str(text) + "\n")

    def write(self, index, text):
        """Writes to an output of the execution itself, which sys.stdout and sys.stderr may not be."""
        here = output.execution()
        if here is not None:
            for stream in sys.stdout, sys.stderr:
                output.flush(stream)
            here.sinks[1 - index].flush()
            here.sinks[index].text(text)

    def transform_cell(self, raw_cell):
        cell = super().transform_cell(raw_cell)
        if self.compile.file:  # lines have the numbers that they have in the file: IPython drops empty ones at the start
            cell = "\n" * raw_cell[: len(raw_cell) - len(raw_cell.lstrip())].count("\n") + cell
        return cell

    # --- errors --------------------------------------------------------------------------------------------------------

    def begin_cell(self):
        """Forgets the errors of the last cell."""
        self.result = None  # of the cell that runs, not of the cells within it
        self.early = []  # errors before the code ran, of which one may be the cell's own
        self.own = None  # the text of the cell's own error
        self.of_display = None  # the error of showing the last value
        self.displayhook._is_active = False

    async def run_ast_nodes(self, nodelist, cell_name, interactivity="last_expr", compiler=compile, result=None):
        first = self.result is None
        if first:
            self.result = result
            self.show_early_errors()
        return await super().run_ast_nodes(nodelist, cell_name, interactivity, compiler, result)

    def show_early_errors(self, own=None):
        for value, lines in self.early:
            if value is own:
                self.own = lines
            else:
                self.show_error(lines)
        self.early = []

    def _showtraceback(self, etype, evalue, stb):
        """Keeps the cell's own error for the reply, and prints any other: of a hook, of a repr, of a cell within the cell."""
        if os.getpid() != self.pid:  # a fork has no reply
            self.show_error(stb)
        elif self.result is None:
            self.early.append((evalue, stb))
        elif evalue is self.result.error_in_exec or evalue is self.result.error_before_exec:
            self.own = stb
        elif self.displayhook.is_active and self.of_display is None:
            self.of_display, self.own = evalue, stb
        else:
            self.show_error(stb)

    def show_error(self, lines):
        """Prints an error where the execution prints errors, also while the code catches what it prints."""
        self.write(1, "\n".join(str(line).rstrip("\n") for line in lines) + "\n")

    def _get_exc_info(self, exc_tuple=None):
        kind, value, traceback = super()._get_exc_info(exc_tuple)
        without_own_frames(value)
        return kind, value, traceback

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

    def outcome(self, result):
        """The reply to an execution: how its cell ended."""
        error = result.error_before_exec if result.error_before_exec is not None else result.error_in_exec
        self.show_early_errors(error)
        reply = {"status": "ok", "execution_count": self.execution_count - 1}
        error = self.of_display if error is None else error
        if error is not None:
            reply.update(failure(error, self.own or ()))
        return reply


def failure(error, lines=()):
    """The part of a reply that describes an error. Its text is bounded: an exception may contain large user data."""
    try:
        text = str(error)
    except Exception:
        text = "<exception str() failed>"
    return {
        "status": "error",
        "ename": type(error).__name__,
        "evalue": text[:MAX_ERROR],
        "traceback": [str(line)[:MAX_ERROR_LINE] for line in shortened(list(lines))],
    }


def shortened(lines):
    """Leaves out the middle of a long traceback."""
    if len(lines) <= MAX_ERROR_LINES:
        return lines
    head, tail = MAX_ERROR_LINES // 4, MAX_ERROR_LINES * 3 // 4 - 1
    return [*lines[:head], f"... {len(lines) - head - tail} parts of the traceback are left out ...\n", *lines[-tail:]]


def without_own_frames(error):
    """Takes this kernel's frames out of the traceback of an error: the code that it shows is no caller's."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        at = error.__traceback__
        while at is not None:
            while at.tb_next is not None and os.path.dirname(at.tb_next.tb_frame.f_code.co_filename) == FOLDER:
                at.tb_next = at.tb_next.tb_next
            at = at.tb_next
        error = error.__cause__ or error.__context__


class Kernel:
    """get_ipython().kernel: what libraries ask of it."""

    implementation = "ipython"
    eventloop = session = iopub_socket = None

    def __init__(self, shell):
        self.shell = shell
        self.log = shell.log
        self.shell_handlers, self.control_handlers = {}, {}

    @property
    def comm_manager(self):
        import comm

        return comm.get_comm_manager()

    @property
    def execution_count(self):
        return self.shell.execution_count

    def get_parent(self, channel=None):
        here = output.execution()
        ident, session = (here.message, here.session) if here else ("", "")
        return {"header": {"msg_id": ident, "msg_type": "execute_request", "session": session, "username": ""}, "content": {}, "metadata": {}}

    _parent_header = property(get_parent)


def no_input(prompt="", *args, **kwargs):
    raise StdinNotImplementedError("raw_input was called, but this frontend does not support input requests.")


def no_password(prompt="", stream=None, **kwargs):
    raise StdinNotImplementedError("getpass was called, but this frontend does not support input requests.")


def make(config, send_event, send):
    """Creates the shell."""
    config.IPKernelApp.quiet = True  # libraries look for this section to find out that they run in a notebook
    shell = ZMQInteractiveShell.instance(config=config, send_event=send_event, send=send)
    shell.kernel = Kernel(shell)
    shell.begin_cell()
    warnings.filterwarnings("ignore", message="To exit: use")
    # The threads belong to the kernel, and survive_forks handles them.
    warnings.filterwarnings("ignore", message=r"This process \(pid=\d+\) is multi-threaded", category=DeprecationWarning)
    return shell


InteractiveShellABC.register(ZMQInteractiveShell)
sys.modules["ipykernel.zmqshell"] = sys.modules[__name__]  # where libraries look whether this is a notebook, and for the shell's class
