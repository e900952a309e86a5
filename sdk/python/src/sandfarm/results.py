"""What comes of jobs: the outcome of code, of commands and of installs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _decode as d
from . import _html
from .errors import CodeError, CommandError, PackageError
from .models import Artifact
from .rich import Rich, grouped


@dataclass(frozen=True)
class Truncated:
    """Which streams were cut to head and tail; the whole is an artifact then."""

    stdout: bool = False
    stderr: bool = False

    def __bool__(self) -> bool:
        return self.stdout or self.stderr


@dataclass(frozen=True)
class Raised:
    """The exception that ended code.

    Attributes:
        name: its class; `KernelDied` or `OutOfMemory` when the kernel ended.
        value: its text.
        traceback: lines, without colours.
    """

    name: str = ""
    value: str = ""
    traceback: tuple[str, ...] = d.by(tuple, default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.name}: {self.value}" if self.value else self.name


@dataclass(frozen=True)
class Installed:
    """The outcome for one package of an install.

    Attributes:
        name: of the package.
        requested: what was asked for.
        version: that is there now; empty where it failed.
        status: `installed` or `failed`.
        message: why it failed, or what to know about it.
        why: of an automatic install: what asked for it.
    """

    name: str = ""
    requested: str = ""
    version: str = ""
    status: str = ""
    message: str = ""
    why: str = ""

    @property
    def ok(self) -> bool:
        """Whether it is there."""
        return self.status == "installed"


@dataclass(frozen=True)
class ExecuteResult:
    """The outcome of code. `str()` of it is the text; notebooks show its pictures and tables.

    Attributes:
        stdout: what it printed; over 1 MiB head and tail, and the whole as an artifact.
        stderr: what it wrote to standard error, likewise.
        exit_code: 0; 1 for an exception; N after `sys.exit(N)`; 128 + signal for a kill.
        error: the exception that ended it; None: none.
        results: the values that it displayed, among them that of its last expression.
        artifacts: every file of the workspace that is new or changed.
        artifacts_skipped: files over the farm's caps, which stay in the workspace.
        execution_count: counter of the kernel.
        truncated: which streams were cut.
        kernel_restarted: the kernel is a new one: variables are gone.
        installed: packages that were installed for it.
        notes: what to know about it, a sentence each.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    error: Raised | None = d.by(d.one(Raised), default=None)
    results: tuple[Rich, ...] = d.by(grouped, default=())
    artifacts: tuple[Artifact, ...] = d.by(d.many(Artifact), default=())
    artifacts_skipped: int = 0
    execution_count: int = 0
    truncated: Truncated = d.by(d.one(Truncated), default=Truncated())
    kernel_restarted: bool = False
    fresh_process: bool = False
    installed: tuple[Installed, ...] = d.by(d.many(Installed), default=())
    notes: tuple[str, ...] = d.by(tuple, default=())

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.error is None and self.exit_code == 0

    @property
    def text(self) -> str:
        """What it printed, the displayed values as text, and the traceback if it raised."""
        parts = [self.stdout, *(str(r) for r in self.results)]
        if self.error is not None:
            parts.append("\n".join(self.error.traceback) or str(self.error))
        return "\n".join(part.removesuffix("\n") for part in parts if part)

    @property
    def images(self) -> tuple[bytes, ...]:
        """The displayed pictures, as PNG."""
        return tuple(r.png for r in self.results if r.png is not None)

    def check(self) -> ExecuteResult:
        """Gives the result itself where it is ok.

        Raises:
            CodeError: the code raised, or exited with another code than 0.
        """
        if self.ok:
            return self
        message = str(self.error) if self.error else f"the code exited with {self.exit_code}"
        raise CodeError(message, result=self)

    def __str__(self) -> str:
        return self.text

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
        ]
        return "\n".join(part for part in parts if part)

    def _repr_mimebundle_(self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None) -> dict[str, str]:
        if not self.stderr and self.error is None and all(r._repr_html_() is None for r in self.results):
            return {"text/plain": str(self)}  # a notebook shows it as any other text
        return {"text/plain": str(self), "text/html": self._repr_html_()}


@dataclass(frozen=True)
class CommandOutcome:
    """The outcome of one command: its exit code (128 + signal for a kill), its output, the milliseconds it took."""

    command: str = ""
    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""
    truncated: Truncated = d.by(d.one(Truncated), default=Truncated())
    duration_ms: float = 0.0


@dataclass(frozen=True)
class CommandResult:
    """The outcome of commands, as far as they ran. `str()` of it is what they printed.

    Attributes:
        results: one for each command that ran.
        artifacts: every file of the workspace that is new or changed.
        artifacts_skipped: files over the farm's caps.
        notes: what to know about it, a sentence each.
    """

    results: tuple[CommandOutcome, ...] = d.by(d.many(CommandOutcome), default=())
    artifacts: tuple[Artifact, ...] = d.by(d.many(Artifact), default=())
    artifacts_skipped: int = 0
    notes: tuple[str, ...] = d.by(tuple, default=())

    @property
    def stdout(self) -> str:
        """What all of them printed."""
        return "".join(r.stdout for r in self.results)

    @property
    def stderr(self) -> str:
        """What all of them wrote to standard error."""
        return "".join(r.stderr for r in self.results)

    @property
    def exit_code(self) -> int:
        """That of the first command that failed; 0 where none did."""
        return next((r.exit_code for r in self.results if r.exit_code), 0)

    @property
    def ok(self) -> bool:
        """Whether every exit code is 0."""
        return self.exit_code == 0

    def check(self) -> CommandResult:
        """Gives the result itself where it is ok.

        Raises:
            CommandError: a command failed.
        """
        for r in self.results:
            if r.exit_code:
                last = r.stderr.strip().rpartition("\n")[2]
                raise CommandError(f"{r.command!r} exited with {r.exit_code}" + (f": {last}" if last else ""), result=self)
        return self

    def __str__(self) -> str:
        return (self.stdout + self.stderr).removesuffix("\n")

    def _repr_html_(self) -> str:
        return _html.preformatted(self.stdout) + _html.preformatted(self.stderr, "#a33")


@dataclass(frozen=True)
class InstallResult:
    """The outcome of an install.

    Attributes:
        packages: one for each that was asked for.
        stdout: what the installer printed.
        stderr: what the installer wrote to standard error.
        notes: what to know about it, a sentence each.
    """

    packages: tuple[Installed, ...] = d.by(d.many(Installed), default=())
    stdout: str = field(default="", repr=False)
    stderr: str = field(default="", repr=False)
    truncated: Truncated = d.by(d.one(Truncated), default=Truncated(), repr=False)
    notes: tuple[str, ...] = d.by(tuple, default=())

    @property
    def ok(self) -> bool:
        """Whether every package is there."""
        return all(p.ok for p in self.packages)

    @property
    def versions(self) -> dict[str, str]:
        """What is there now, by name."""
        return {p.name: p.version for p in self.packages if p.ok}

    def check(self) -> InstallResult:
        """Gives the result itself where it is ok.

        Raises:
            PackageError: a package could not be installed; the message says why for each.
        """
        failed = [p for p in self.packages if not p.ok]
        if not failed:
            return self
        raise PackageError(" ".join(p.message or f"{p.requested} could not be installed." for p in failed), result=self)

    def __str__(self) -> str:
        return "\n".join(f"{p.name} {p.version}" if p.ok else f"{p.requested or p.name}: {p.message}" for p in self.packages)


_BY_KIND: Mapping[str, type[ExecuteResult | CommandResult | InstallResult]] = {
    "execute": ExecuteResult,
    "run": ExecuteResult,
    "command": CommandResult,
    "install": InstallResult,
}


def of_kind(kind: str, data: Any) -> Any:
    """The result of a job of a kind; JSON as it came where the kind has no class of its own."""
    if kind == "create" and isinstance(data, Mapping) and "packages" in data:
        return d.build(InstallResult, data)
    cls = _BY_KIND.get(kind)
    return d.build(cls, data) if cls is not None and isinstance(data, Mapping) else data
