"""Runs code and commands in one sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._io import finish
from .aio_runner import AsyncRunner
from .models import Artifact, Job, Progress
from .results import CommandResult, ExecuteResult
from .rich import Rich


class Runner:
    """Base class of `Sandbox`: the methods that run code and commands."""

    def __init__(self, runner: AsyncRunner) -> None:
        self._async = runner

    # --- code --------------------------------------------------------------------------------------------------------

    def run(
        self,
        code: str,
        *,
        language: str | None = None,
        filename: str | None = None,
        context: str | None = None,
        timeout: int | None = None,
        env: Mapping[str, str] | None = None,
        auto_install: bool = False,
        on_output_limit: str | None = None,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        on_result: Callable[[Rich], Any] | None = None,
        on_clear: Callable[[bool], Any] | None = None,
        on_artifact: Callable[[Artifact], Any] | None = None,
        on_progress: Callable[[Progress], Any] | None = None,
        wait_timeout: float | None = None,
        idempotency_key: str | None = None,
        check: bool = False,
    ) -> ExecuteResult:
        """Runs code and waits for its result. Variables are kept between runs.

        If the code raises, that is a result, not an error: look at `result.error`, or pass `check=True`. Ctrl-C while this
        waits cancels the job.

        Args:
            code: the code.
            language: one of `languages()`; default `python`.
            filename: name of the file in the workspace that the code is from: its `__file__` and `sys.argv[0]`; errors name
                it. Python only. The file itself need not be there, unless child processes load it (multiprocessing).
            context: name of the kernel; each has its own variables.
            timeout: seconds that the code may run, from 1 (default 300).
            env: environment variables of this run only.
            auto_install: install packages that the code imports and the sandbox does not have.
            on_output_limit: what happens when stdout or stderr exceeds the farm's limit (100 MiB): `continue` (default)
                drops the middle of the output, `stop` ends the code.
            on_stdout: called with standard output as it appears.
            on_stderr: called with standard error as it appears.
            on_result: called with each displayed value as it appears, and with each update of one; in a notebook pass
                `Rich.show`.
            on_clear: called when the code clears its output, with True if that is to wait for the next output; in a notebook
                pass `clear_output`.
            on_artifact: called with each file that the code created or changed.
            on_progress: called with the progress before the code runs, such as an install.
            wait_timeout: how many seconds to wait at most.
            idempotency_key: your own key, to repeat this call from another process without running the code twice.
            check: raise `CodeError` if the code failed.

        Raises:
            JobTimedOut: the code exceeded its timeout; `.result` has the output until then.
            JobCanceled: the job was canceled, or the sandbox was closed; `.result` likewise.
            JobError: the code could not run; the message says why.
            ConflictError: the sandbox is closed.
            WaitTimeout: `wait_timeout` has expired; the job continues.
            CodeError: with `check`: the code raised, or its exit code is not 0.
        """
        return finish(
            self._async.run(
                code,
                language=language,
                filename=filename,
                context=context,
                timeout=timeout,
                env=env,
                auto_install=auto_install,
                on_output_limit=on_output_limit,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                on_result=on_result,
                on_clear=on_clear,
                on_artifact=on_artifact,
                on_progress=on_progress,
                wait_timeout=wait_timeout,
                idempotency_key=idempotency_key,
                check=check,
            )
        )

    def submit(
        self,
        code: str,
        *,
        language: str | None = None,
        filename: str | None = None,
        context: str | None = None,
        timeout: int | None = None,
        env: Mapping[str, str] | None = None,
        auto_install: bool = False,
        on_output_limit: str | None = None,
        callback_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Starts code and returns its job: `poll` it, `wait` for it, read its `events`, or `cancel` it.

        Args: as for `run`. The farm sends the finished job to `callback_url`.
        """
        return finish(
            self._async.submit(
                code,
                language=language,
                filename=filename,
                context=context,
                timeout=timeout,
                env=env,
                auto_install=auto_install,
                on_output_limit=on_output_limit,
                callback_url=callback_url,
                idempotency_key=idempotency_key,
            )
        )

    def languages(self) -> tuple[str, ...]:
        """The languages of its image."""
        return finish(self._async.languages())

    def interrupt(self, context: str | None = None) -> Job:
        """Interrupts all kernels, or that of one context, as Ctrl-C would. Variables are kept."""
        return finish(self._async.interrupt(context))

    def restart(self, context: str | None = None) -> Job:
        """Restarts all kernels, or that of one context. Variables are lost, files stay."""
        return finish(self._async.restart(context))

    def hibernate(self) -> Job:
        """Stores its memory on its node, after the jobs before it.

        It uses no memory and no cores until it resumes: by `resume`, or for the next code, command, install or change of
        files. Needs the runtime `runsc` (gVisor).

        Raises:
            ConflictError: it runs under another runtime, has a GPU, or runs a command in the background.
        """
        return finish(self._async.hibernate())

    def resume(self) -> Job:
        """Resumes it if it is hibernated: variables, files and programs are as they were."""
        return finish(self._async.resume())

    # --- commands ----------------------------------------------------------------------------------------------------

    def bash(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: int | None = None,
        auto_install: bool = False,
        on_output_limit: str | None = None,
        continue_on_error: bool = False,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        on_artifact: Callable[[Artifact], Any] | None = None,
        on_progress: Callable[[Progress], Any] | None = None,
        wait_timeout: float | None = None,
        idempotency_key: str | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Runs a shell command or script, or several in order until one fails, and waits for the result.

        Args:
            command: one command, or several.
            cwd: working directory, relative to the workspace.
            env: environment variables of these commands only.
            timeout: seconds for all commands together, from 1 (default 300).
            auto_install: install packages that Python programs import and the sandbox does not have.
            on_output_limit: what happens when stdout or stderr exceeds the farm's limit (100 MiB): `continue` (default)
                drops the middle of the output, `stop` ends the commands.
            continue_on_error: run the remaining commands after one that failed.
            on_stdout: called with standard output as it appears.
            on_stderr: called with standard error as it appears.
            on_artifact: called with each file that the commands created or changed.
            on_progress: called with the progress before the commands run, such as an install.
            wait_timeout: how many seconds to wait at most.
            idempotency_key: your own key.
            check: raise `CommandError` if a command failed.

        Raises:
            JobTimedOut, JobCanceled, JobError, ConflictError, WaitTimeout: as for `run`.
            CommandError: with `check`: an exit code is not 0.
        """
        return finish(
            self._async.bash(
                command,
                cwd=cwd,
                env=env,
                timeout=timeout,
                auto_install=auto_install,
                on_output_limit=on_output_limit,
                continue_on_error=continue_on_error,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                on_artifact=on_artifact,
                on_progress=on_progress,
                wait_timeout=wait_timeout,
                idempotency_key=idempotency_key,
                check=check,
            )
        )

    def submit_bash(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: int | None = None,
        auto_install: bool = False,
        on_output_limit: str | None = None,
        continue_on_error: bool = False,
        background: bool = False,
        callback_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Starts commands and returns their job.

        Args: as for `bash`. With `background`, the next jobs of the sandbox do not wait for it: use it for a server.
        """
        return finish(
            self._async.submit_bash(
                command,
                cwd=cwd,
                env=env,
                timeout=timeout,
                auto_install=auto_install,
                on_output_limit=on_output_limit,
                continue_on_error=continue_on_error,
                background=background,
                callback_url=callback_url,
                idempotency_key=idempotency_key,
            )
        )
