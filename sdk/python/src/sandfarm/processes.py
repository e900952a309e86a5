"""Processes beside the jobs of one sandbox."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence

from ._io import finish, iterate
from .aio_processes import AsyncProcess, AsyncProcesses
from .live import Output, ProcessInfo, RunningProcess


class Process:
    """One process. It runs on when you disconnect, until it exits, is ended, or the sandbox closes.

    Its methods raise `NotFoundError` when the farm no longer knows it, and `ConflictError` when it has ended.
    """

    def __init__(self, process: AsyncProcess) -> None:
        self._async = process

    @property
    def id(self) -> str:
        """Its id, such as `prc_…`."""
        return self._async.id

    @property
    def info(self) -> ProcessInfo:
        """What was last known of it. `refresh` asks again."""
        return self._async.info

    def __repr__(self) -> str:
        return f"Process({self.id} {self.info.state})"

    def refresh(self) -> ProcessInfo:
        """Asks how it is."""
        return finish(self._async.refresh())

    def output(self, *, after: str = "") -> Iterator[Output]:
        """Iterates over its output, from what is kept (the last MiB) to its exit. `info` is how it ended then.

        When the connection breaks, the output continues after the last piece. A process waits for its readers: read all, or
        stop.

        Args:
            after: `id` of the last piece that you have.
        """
        return iterate(self._async.output(after=after))

    def wait(self) -> ProcessInfo:
        """Waits until it exits."""
        return finish(self._async.wait())

    def write(self, data: str | bytes, *, close: bool = False) -> int:
        """Writes to its input and returns how many bytes it took. It must have been started with `stdin` or `pty`.

        Args:
            data: text (as UTF-8) or bytes.
            close: end the input after it; for a terminal this types control-D.

        Raises:
            ConflictError: it has no input, has ended, or reads nothing for ten seconds.
        """
        return finish(self._async.write(data, close=close))

    def signal(self, name: str) -> ProcessInfo:
        """Sends a signal, such as `SIGINT`, to it and its group."""
        return finish(self._async.signal(name))

    def resize(self, cols: int, rows: int) -> ProcessInfo:
        """Sets the size of its terminal, 1 to 1000 each.

        Raises:
            ConflictError: it has no terminal.
        """
        return finish(self._async.resize(cols, rows))

    def end(self) -> ProcessInfo:
        """Ends it with all that it started: SIGTERM, and after five seconds SIGKILL. The answer is how it ended."""
        return finish(self._async.end())


class Processes:
    """The processes of one sandbox, beside its jobs: servers, shells, builds."""

    def __init__(self, processes: AsyncProcesses) -> None:
        self._async = processes

    def start(
        self,
        command: str | Sequence[str],
        *,
        name: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        timeout: int | None = None,
        hangup: int | None = None,
        restart: str | None = None,
    ) -> Process:
        """Starts a process and returns at once.

        Args:
            command: a command for the shell, or a program with its arguments.
            name: a name; need not be unique.
            cwd: working directory, relative to the workspace.
            env: environment of this process only.
            stdin: give it an input that `Process.write` writes to. A terminal always has one.
            pty: columns and rows of a terminal to run on; its output is all `stdout` then.
            timeout: seconds that it may run. Default: as long as the sandbox.
            hangup: seconds without a reader of its output, also at the beginning, after which it gets SIGHUP, as when a
                terminal is closed. Default: never.
            restart: `on-failure` starts it again after an exit code other than 0, with a pause that grows from 0.1 to 30 s,
                until it is ended or fails too often. Output and input continue. Default: `never`.

        Raises:
            ExhaustedError: the sandbox has as many processes as it may.
        """
        made = self._async.start(
            command, name=name, cwd=cwd, env=env, stdin=stdin, pty=pty, timeout=timeout, hangup=hangup, restart=restart
        )
        return Process(finish(made))

    def list(self) -> builtins.list[ProcessInfo]:
        """Lists those that were started here; of those that have ended the newest 64."""
        return finish(self._async.list())

    def running(self) -> builtins.list[RunningProcess]:
        """Lists all that run in the sandbox, those of jobs and kernels too, with CPU time and memory."""
        return finish(self._async.running())

    def get(self, process_id: str) -> Process:
        """Finds a process.

        Raises:
            NotFoundError: there is none with this id.
        """
        return Process(finish(self._async.get(process_id)))
