"""What lives in a sandbox beside its jobs: processes, their output, ports."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from . import _decode as d
from .models import NEVER


@dataclass(frozen=True)
class TerminalSize:
    """The size of a terminal in characters."""

    cols: int = 80
    rows: int = 24


@dataclass(frozen=True)
class ProcessInfo:
    """A process that a caller started beside the jobs.

    Attributes:
        id: of the process.
        pid: its number in the sandbox; 0: it waits until it is started again.
        name: that the caller gave.
        state: `running` or `exited`.
        command: for the shell; empty: it was started with `argv`.
        argv: program and arguments; empty: it was started with `command`.
        pty: size of its terminal; None: it has none.
        stdin: it was started with an input.
        restart: `never`, or `on-failure`: it is started again when it fails.
        restarts: how often it was started again.
        started_at: when it was started (UTC), the first time.
        ended_at: when it ended (UTC); None: it runs.
        exit_code: 128 and the number of the signal that ended it, if one did; None: it runs.
        timed_out: it was ended after its timeout.
        stopped: it was ended by `end`.
        out_of_memory: it was ended since a limit of the sandbox, such as its memory, was reached.
    """

    id: str = ""
    pid: int = 0
    name: str = ""
    state: str = ""
    command: str = ""
    argv: tuple[str, ...] = d.field(tuple, default=())
    pty: TerminalSize | None = d.field(d.object_of(TerminalSize), default=None)
    stdin: bool = False
    restart: str = "never"
    restarts: int = 0
    started_at: datetime = d.field(d.timestamp, default=NEVER)
    ended_at: datetime | None = d.field(d.timestamp, default=None)
    exit_code: int | None = None
    timed_out: bool = False
    stopped: bool = False
    out_of_memory: bool = False

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.state == "running"


@dataclass(frozen=True)
class RunningProcess:
    """Any process that runs in a sandbox, also those of jobs and kernels.

    Attributes:
        pid: its number in the sandbox.
        parent: number of the process that started it, or 1 if that has ended.
        owner: id of the process or job that it belongs to, or `kernel`; empty: unknown.
        command: its arguments, up to 256 bytes.
        cpu_seconds: CPU time that it has used.
        memory_bytes: its memory (resident), with what it shares with others.
        started_at: when it was started (UTC).
    """

    pid: int = 0
    parent: int = 0
    owner: str = ""
    command: str = ""
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    started_at: datetime = d.field(d.timestamp, default=NEVER)


@dataclass(frozen=True)
class Output:
    """A piece of the output of a process.

    Attributes:
        kind: `stdout`, `stderr`, or `dropped`: output before the next piece was not kept.
        data: the bytes.
        id: pass it as `after` to continue after this piece.
    """

    kind: str
    data: bytes = b""
    id: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """The bytes as text. What is not UTF-8 is replaced."""
        return self.data.decode("utf-8", "replace")

    def __str__(self) -> str:
        return self.text


def output_of(kind: str, event_id: str, data: Mapping[str, Any]) -> Output:
    """Decodes an event of a process."""
    if "base64" in data:
        return Output(kind, base64.b64decode(data["base64"]), event_id)
    return Output(kind, str(data.get("text", "")).encode(), event_id)


@dataclass(frozen=True)
class PortInfo:
    """A port on which a program of a sandbox listens.

    Attributes:
        port: its number.
        address: on which the program listens; `0.0.0.0` and `::` are all of the sandbox.
        pid: process that listens; None: not known.
        command: its command, shortened; empty: not known.
    """

    port: int = 0
    address: str = ""
    pid: int | None = None
    command: str = ""


@dataclass(frozen=True)
class PortLink:
    """An address of a port that needs no key: whoever has it uses that port.

    Attributes:
        url: the address.
        port: the port.
        expires_at: when it stops working (UTC).
    """

    url: str = ""
    port: int = 0
    expires_at: datetime = d.field(d.timestamp, default=NEVER)

    def __str__(self) -> str:
        return self.url
