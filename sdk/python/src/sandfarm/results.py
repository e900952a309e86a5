"""Results of jobs: of code, of commands and of installs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _decode as d
from . import _html
from .errors import ResultError, as_here
from .models import Artifact
from .rich import Rich, group


@dataclass(frozen=True)
class Truncated:
    """Which streams are truncated to head and tail. An artifact has all of it."""

    stdout: bool = False
    stderr: bool = False

    def __bool__(self) -> bool:
        return self.stdout or self.stderr


@dataclass(frozen=True)
class DroppedBytes:
    """How many bytes of each stream exceeded the farm's limit. They were dropped from its middle and are kept nowhere."""

    stdout: int = 0
    stderr: int = 0

    def __bool__(self) -> bool:
        return bool(self.stdout or self.stderr)


@dataclass(frozen=True)
class Raised:
    """The exception that ended the code.

    Attributes:
        name: its class; `KernelDied` or `OutOfMemory` if the kernel ended, `OutputLimitExceeded` if `on_output_limit="stop"`
            ended the code.
        value: its text.
        traceback: lines, without colors.
    """

    name: str = ""
    value: str = ""
    traceback: tuple[str, ...] = d.field(tuple, default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.name}: {self.value}" if self.value else self.name


@dataclass(frozen=True)
class Installed:
    """The outcome for one package of an install.

    Attributes:
        name: of the package.
        requested: the requirement as the caller gave it.
        version: the installed version; empty if it failed.
        status: `installed` or `failed`.
        message: why it failed, or a remark.
        why: for an automatic install: what needs it.
    """

    name: str = ""
    requested: str = ""
    version: str = ""
    status: str = ""
    message: str = d.field(as_here, default="")
    why: str = ""

    @property
    def ok(self) -> bool:
        """Whether it is installed."""
        return self.status == "installed"


def _lines(*parts: str) -> str:
    """What there is of parts, each on lines of its own."""
    return "\n".join(part.removesuffix("\n") for part in parts if part)


def _notes(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(as_here, notes))


def _remarks(notes: tuple[str, ...], installed: tuple[Installed, ...] = ()) -> list[str]:
    """A line for each package that could not be installed automatically, and for each note of the farm."""
    failed = (": ".join(filter(None, (f"package {p.name or p.requested}", p.status, p.message))) for p in installed if not p.ok)
    return [*failed, *(f"note: {note}" for note in notes)]


def _noted(text: str, notes: tuple[str, ...], installed: tuple[Installed, ...] = ()) -> str:
    """A text with its remarks."""
    return "\n".join([*([text] if text else []), *_remarks(notes, installed)])


@dataclass(frozen=True)
class ExecuteResult:
    """The result of code. `str()` is what a model needs of it; notebooks show its pictures and tables.

    The text has both outputs, the displayed values, the traceback or an exit code that is not 0, the packages that could not be
    installed automatically, and the notes.

    Attributes:
        stdout: standard output. Over 1 MiB it is truncated to head and tail, and an artifact has
            the whole.
        stderr: standard error, truncated likewise.
        exit_code: 0; 1 for an exception; N after `sys.exit(N)`; 128 + signal number after a signal.
        error: the exception that ended the code; None if there is none.
        results: the values that the code displayed and did not clear, in their last state, including its last expression.
        artifacts: every file in the workspace that is new or changed.
        artifacts_skipped: how many files were over the farm's limits. They stay in the workspace.
        execution_count: counter of the kernel.
        truncated: which streams are truncated.
        dropped_bytes: how many bytes of each stream exceeded the farm's limit (100 MiB) and were dropped.
        kernel_restarted: the kernel is a new one and the variables are lost.
        fresh_process: the code ran in a process of its own.
        installed: packages that were installed automatically.
        notes: remarks, a sentence each.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    error: Raised | None = d.field(d.object_of(Raised), default=None)
    results: tuple[Rich, ...] = d.field(group, default=())
    artifacts: tuple[Artifact, ...] = d.field(d.tuple_of(Artifact), default=())
    artifacts_skipped: int = 0
    execution_count: int = 0
    truncated: Truncated = d.field(d.object_of(Truncated), default=Truncated())
    dropped_bytes: DroppedBytes = d.field(d.object_of(DroppedBytes), default=DroppedBytes())
    kernel_restarted: bool = False
    fresh_process: bool = False
    installed: tuple[Installed, ...] = d.field(d.tuple_of(Installed), default=())
    notes: tuple[str, ...] = d.field(_notes, default=())

    @property
    def ok(self) -> bool:
        """Whether the code ended without an exception and with exit code 0."""
        return self.error is None and self.exit_code == 0

    @property
    def text(self) -> str:
        """Standard output, the displayed values as text, and the traceback if the code raised."""
        return _lines(self.stdout, *(str(r) for r in self.results), self._raised())

    def _raised(self) -> str:
        return "" if self.error is None else "\n".join(self.error.traceback) or str(self.error)

    @property
    def images(self) -> tuple[bytes, ...]:
        """The displayed pictures, as PNG."""
        return tuple(r.png for r in self.results if r.png is not None)

    def check(self) -> ExecuteResult:
        """Returns the result itself if it is ok.

        Raises:
            CodeError: the code raised, or its exit code is not 0.
        """
        if self.ok:
            return self
        message = str(self.error) if self.error else f"the code exited with {self.exit_code}"
        raise CodeError(message, result=self)

    def __str__(self) -> str:
        values = [str(r) for r in self.results]
        code = f"exit code {self.exit_code}" if self.exit_code and self.error is None else ""
        return _noted(_lines(self.stdout, self.stderr, *values, self._raised(), code), self.notes, self.installed)

    def _repr_png_(self) -> bytes | None:
        return next(iter(self.images), None)

    def _repr_html_(self) -> str:
        shown = [r._repr_html_() or _html.preformatted(str(r)) for r in self.results]
        error = "\n".join(self.error.traceback) or str(self.error) if self.error else ""
        parts = [
            _html.preformatted(self.stdout),
            _html.preformatted(self.stderr, "#a33"),
            *shown,
            _html.preformatted(error, "#a33"),
            _html.preformatted(_noted("", self.notes, self.installed)),
        ]
        return "\n".join(part for part in parts if part)

    def _repr_mimebundle_(self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None) -> dict[str, str]:
        if not self.stderr and self.error is None and all(r._repr_html_() is None for r in self.results):
            return {"text/plain": str(self)}  # plain text needs no HTML
        return {"text/plain": str(self), "text/html": self._repr_html_()}


@dataclass(frozen=True)
class CommandOutcome:
    """The result of one command: exit code (128 + signal number after a signal), output, duration in milliseconds."""

    command: str = ""
    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""
    truncated: Truncated = d.field(d.object_of(Truncated), default=Truncated())
    dropped_bytes: DroppedBytes = d.field(d.object_of(DroppedBytes), default=DroppedBytes())
    duration_ms: float = 0.0


@dataclass(frozen=True)
class CommandResult:
    """The result of commands.

    `str()` returns both outputs, an exit code that is not 0, the packages that could not be installed automatically, and the
    notes.

    Attributes:
        results: one for each command that ran.
        artifacts: every file in the workspace that is new or changed.
        artifacts_skipped: how many files were over the farm's limits.
        installed: packages that were installed automatically.
        notes: remarks, a sentence each.
    """

    results: tuple[CommandOutcome, ...] = d.field(d.tuple_of(CommandOutcome), default=())
    artifacts: tuple[Artifact, ...] = d.field(d.tuple_of(Artifact), default=())
    artifacts_skipped: int = 0
    installed: tuple[Installed, ...] = d.field(d.tuple_of(Installed), default=())
    notes: tuple[str, ...] = d.field(_notes, default=())

    @property
    def stdout(self) -> str:
        """The standard output of all commands."""
        return "".join(r.stdout for r in self.results)

    @property
    def stderr(self) -> str:
        """The standard error of all commands."""
        return "".join(r.stderr for r in self.results)

    @property
    def exit_code(self) -> int:
        """The exit code of the first command that failed; 0 if none did."""
        return next((r.exit_code for r in self.results if r.exit_code), 0)

    @property
    def ok(self) -> bool:
        """Whether every exit code is 0."""
        return self.exit_code == 0

    def check(self) -> CommandResult:
        """Returns the result itself if it is ok.

        Raises:
            CommandError: a command failed.
        """
        for r in self.results:
            if r.exit_code:
                last = r.stderr.strip().rpartition("\n")[2]
                raise CommandError(f"{r.command!r} exited with {r.exit_code}" + (f": {last}" if last else ""), result=self)
        return self

    def __str__(self) -> str:
        code = f"exit code {self.exit_code}" if self.exit_code else ""
        return _noted(_lines(self.stdout, self.stderr, code), self.notes, self.installed)

    def _repr_html_(self) -> str:
        notes = _html.preformatted(_noted("", self.notes, self.installed))
        return _html.preformatted(self.stdout) + _html.preformatted(self.stderr, "#a33") + notes


@dataclass(frozen=True)
class InstallResult:
    """The result of an install.

    Attributes:
        packages: one for each requested package.
        stdout: standard output of the installer.
        stderr: standard error of the installer.
        truncated: which streams are truncated.
        dropped_bytes: how many bytes of each stream exceeded the farm's limit (100 MiB) and were dropped.
        artifacts: the whole of each truncated stream.
        notes: remarks, a sentence each.
    """

    packages: tuple[Installed, ...] = d.field(d.tuple_of(Installed), default=())
    stdout: str = field(default="", repr=False)
    stderr: str = field(default="", repr=False)
    truncated: Truncated = d.field(d.object_of(Truncated), default=Truncated(), repr=False)
    dropped_bytes: DroppedBytes = d.field(d.object_of(DroppedBytes), default=DroppedBytes(), repr=False)
    artifacts: tuple[Artifact, ...] = d.field(d.tuple_of(Artifact), default=())
    notes: tuple[str, ...] = d.field(_notes, default=())

    @property
    def ok(self) -> bool:
        """Whether every package is installed."""
        return all(p.ok for p in self.packages)

    @property
    def versions(self) -> dict[str, str]:
        """The installed versions, by name."""
        return {p.name: p.version for p in self.packages if p.ok}

    def check(self) -> InstallResult:
        """Returns the result itself if it is ok.

        Raises:
            PackageError: a package could not be installed; the message says why for each.
        """
        failed = [p for p in self.packages if not p.ok]
        if not failed:
            return self
        raise PackageError(" ".join(p.message or f"{p.requested} could not be installed." for p in failed), result=self)

    def __str__(self) -> str:
        lines = [f"{p.name} {p.version}" if p.ok else f"{p.requested or p.name}: {p.message}" for p in self.packages]
        return _noted("\n".join(lines), self.notes)


class CodeError(ResultError):
    """The code raised, its exit code is not 0, or its kernel died.

    Attributes:
        result: all output of the code; `result.error` has the exception's name, text and traceback.
    """

    def __init__(self, message: str, *, result: ExecuteResult) -> None:
        super().__init__(message, remarks=_remarks(result.notes, result.installed) if result else ())
        self.result = result


class CommandError(ResultError):
    """The exit code of a command is not 0.

    Attributes:
        result: the outcome of every command that ran.
    """

    def __init__(self, message: str, *, result: CommandResult) -> None:
        super().__init__(message, remarks=_remarks(result.notes, result.installed) if result else ())
        self.result = result


class PackageError(ResultError):
    """A package could not be installed. The others are installed.

    Attributes:
        result: the outcome for each package.
    """

    def __init__(self, message: str, *, result: InstallResult) -> None:
        super().__init__(message, remarks=_remarks(result.notes) if result else ())
        self.result = result


_BY_KIND: Mapping[str, type[ExecuteResult | CommandResult | InstallResult]] = {
    "execute": ExecuteResult,
    "run": ExecuteResult,
    "command": CommandResult,
    "install": InstallResult,
}


def result_of_kind(kind: str, data: Any) -> Any:
    """Decodes the result of a job; returns the JSON as it is if its kind has no class."""
    if kind == "create" and isinstance(data, Mapping) and "packages" in data:
        return d.build(InstallResult, data)
    cls = _BY_KIND.get(kind)
    return d.build(cls, data) if cls is not None and isinstance(data, Mapping) else data
