"""The blocking sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ._io import finish, iterate
from .aio_sandbox import AsyncSandbox
from .client import Client
from .files import Artifacts, Files, Packages
from .models import Artifact, Event, Job, Progress, SandboxInfo
from .results import CommandResult, ExecuteResult
from .rich import Rich


class Sandbox:
    """One sandbox. It is created when it is first used, and closed at the end of a `with` block.

    ```python
    with Sandbox(packages=["humanize"]) as box:
        box.run("import humanize")
        print(box.run("humanize.intcomma(1234567)"))
    ```

    Any number of threads may share one; the farm runs its jobs one at a time, in the order they came.

    Args:
        id: of a sandbox that is there already; such a one is not closed by `with`.
        packages: Python packages to install first, such as `"humanize"` or `["pandas>=2"]`.
        name: need not be unique.
        image: name of the image (`Client.images`); default `python`.
        gpu: so many devices, or `{"count": 1, "model": "…"}`.
        memory_mb: MiB of memory; files in the workspace count.
        cpus: cores.
        pids: processes and threads.
        disk_mb: MiB of the workspace.
        network: `none`, `packages` (default), `allowlist` or `full`; the last two must be enabled by the operator.
        allow_hosts: hosts of the network `allowlist`.
        env: environment of everything in it.
        ttl: seconds of life.
        idle: seconds of life after the end of its last use; 0: no such limit.
        labels: to find it by.
        keep: leave it open at the end of a `with` block.
        client: the client to use; default: one of its own, of `url` and `api_key`.
        url: address of the farm; default: `SANDFARM_URL`, or else `http://127.0.0.1:8000`.
        api_key: default: `SANDFARM_API_KEY`.

    Attributes:
        files: its workspace.
        artifacts: the files that its jobs made.
        packages: what is installed in it.
    """

    def __init__(
        self,
        *,
        id: str | None = None,  # noqa: A002 # what everybody calls it
        packages: str | Sequence[str] | None = None,
        name: str | None = None,
        image: str | None = None,
        gpu: int | Mapping[str, Any] | None = None,
        memory_mb: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        disk_mb: int | None = None,
        network: str | None = None,
        allow_hosts: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        ttl: int | None = None,
        idle: int | None = None,
        labels: Mapping[str, str] | None = None,
        keep: bool = False,
        client: Client | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._owns_client = client is None
        self._client = client or Client(url, api_key)
        self._async = AsyncSandbox(
            id=id,
            packages=packages,
            name=name,
            image=image,
            gpu=gpu,
            memory_mb=memory_mb,
            cpus=cpus,
            pids=pids,
            disk_mb=disk_mb,
            network=network,
            allow_hosts=allow_hosts,
            env=env,
            ttl=ttl,
            idle=idle,
            labels=labels,
            keep=keep,
            client=self._client._async,
        )
        self._async._owns_client = self._owns_client
        self.files = Files(self._async.files)
        self.artifacts = Artifacts(self._async.artifacts)
        self.packages = Packages(self._async.packages)

    @property
    def id(self) -> str:
        """Its id, such as `sbx_…`; empty until it is created."""
        return self._async.id

    @property
    def client(self) -> Client:
        """The client that it uses."""
        return self._client

    def __repr__(self) -> str:
        return f"Sandbox({self.id or 'not created'})"

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> Sandbox:
        """Creates it, if nobody has, and waits until it is ready.

        Raises:
            InvalidError: an argument makes no sense to the farm.
            ExhaustedError: the farm takes no more for now.
            JobError: it could not be made.
            PackageError: one of its packages could not be installed; there is no sandbox then.
        """
        finish(self._async.start())
        return self

    def close(self) -> None:
        """Cancels what runs and waits in it and removes it. Its artifacts stay. Closing a closed one does nothing."""
        finish(self._async.close())

    def __enter__(self) -> Sandbox:
        return self.start()

    def __exit__(self, *raised: Any) -> None:
        finish(self._async.__aexit__(*raised))

    def info(self) -> SandboxInfo:
        """How it is now: its state, its limits, when it expires. Reading it is not use of it."""
        return finish(self._async.info())

    def update(
        self,
        *,
        name: str | None = None,
        ttl: int | None = None,
        idle: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> SandboxInfo:
        """Changes its name, its life or its labels, which replace the old ones. What is left out stays."""
        return finish(self._async.update(name=name, ttl=ttl, idle=idle, labels=labels))

    def keep_alive(self, ttl: int) -> SandboxInfo:
        """Gives it so many seconds of life from now."""
        return finish(self._async.keep_alive(ttl))

    # --- code --------------------------------------------------------------------------------------------------------

    def run(
        self,
        code: str,
        *,
        language: str | None = None,
        context: str | None = None,
        timeout: int | None = None,
        env: Mapping[str, str] | None = None,
        auto_install: bool = False,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        on_result: Callable[[Rich], Any] | None = None,
        on_artifact: Callable[[Artifact], Any] | None = None,
        on_progress: Callable[[Progress], Any] | None = None,
        wait_timeout: float | None = None,
        idempotency_key: str | None = None,
        check: bool = False,
    ) -> ExecuteResult:
        """Runs code and waits for what comes of it. Variables are kept between runs.

        That the code raised is a result, not an error: look at `result.error`, or say `check=True`. Ctrl-C while this waits
        cancels the job.

        Args:
            code: the code.
            language: one of `languages()`; default `python`.
            context: name of the kernel; each keeps its own variables.
            timeout: seconds that the code may run, from 1 (default 300).
            env: environment of this run alone.
            auto_install: install what the code imports and the sandbox lacks.
            on_stdout: gets output while it appears.
            on_stderr: gets standard error while it appears.
            on_result: gets displayed values while they appear; in a notebook `display` does.
            on_artifact: gets each file that was made.
            on_progress: gets what is being done before the code runs, such as an install.
            wait_timeout: seconds to wait at most.
            idempotency_key: a key of your own, to repeat this call from another process.
            check: raise `CodeError` where the code failed.

        Raises:
            JobTimedOut: the code was over its timeout; `.result` has what there was until then.
            JobCanceled: somebody cancelled the job, or closed the sandbox; `.result` likewise.
            JobError: it could not be run; the message says why.
            ConflictError: the sandbox is closed.
            WaitTimeout: `wait_timeout` is over; the job goes on.
            CodeError: with `check`: the code raised or exited with another code than 0.
        """
        return finish(
            self._async.run(
                code,
                language=language,
                context=context,
                timeout=timeout,
                env=env,
                auto_install=auto_install,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                on_result=on_result,
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
        context: str | None = None,
        timeout: int | None = None,
        env: Mapping[str, str] | None = None,
        auto_install: bool = False,
        callback_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Starts code and gives its job at once: `poll` it, `wait` for it, read its `events`, or `cancel` it.

        Args: as for `run`; `callback_url` is an address that gets the finished job.
        """
        return finish(
            self._async.submit(
                code,
                language=language,
                context=context,
                timeout=timeout,
                env=env,
                auto_install=auto_install,
                callback_url=callback_url,
                idempotency_key=idempotency_key,
            )
        )

    def languages(self) -> tuple[str, ...]:
        """The languages that it runs."""
        return finish(self._async.languages())

    def interrupt(self, context: str | None = None) -> Job:
        """Interrupts what runs in its kernels, or in one, as Ctrl-C would. Variables are kept."""
        return finish(self._async.interrupt(context))

    def restart(self, context: str | None = None) -> Job:
        """Gives it new kernels, or one: variables are gone, files stay."""
        return finish(self._async.restart(context))

    # --- commands ----------------------------------------------------------------------------------------------------

    def bash(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: int | None = None,
        continue_on_error: bool = False,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        on_artifact: Callable[[Artifact], Any] | None = None,
        wait_timeout: float | None = None,
        idempotency_key: str | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Runs a shell command or script, or several one after the other up to the first that fails, and waits.

        Args:
            command: one, or several.
            cwd: working directory, relative to the workspace.
            env: environment of these commands alone.
            timeout: seconds for all of them together, from 1 (default 300).
            continue_on_error: go on after one that failed.
            on_stdout: gets output while it appears.
            on_stderr: gets standard error while it appears.
            on_artifact: gets each file that was made.
            wait_timeout: seconds to wait at most.
            idempotency_key: a key of your own.
            check: raise `CommandError` where one failed.

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
                continue_on_error=continue_on_error,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                on_artifact=on_artifact,
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
        continue_on_error: bool = False,
        background: bool = False,
        callback_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Starts commands and gives their job at once.

        Args: as for `bash`; with `background` (a server, say) they hold back no job behind them.
        """
        return finish(
            self._async.submit_bash(
                command,
                cwd=cwd,
                env=env,
                timeout=timeout,
                continue_on_error=continue_on_error,
                background=background,
                callback_url=callback_url,
                idempotency_key=idempotency_key,
            )
        )

    # --- jobs --------------------------------------------------------------------------------------------------------

    def poll(self, job: Job | str) -> Job:
        """Reads a job as it is now. `job.final` says whether it has ended."""
        return finish(self._async.poll(job))

    def wait(self, job: Job | str, *, timeout: float | None = None) -> Job:
        """Waits until a job is final, however it ended.

        Raises:
            WaitTimeout: it is not, after `timeout` seconds; it goes on.
        """
        return finish(self._async.wait(job, timeout=timeout))

    def cancel(self, job: Job | str) -> Job:
        """Ends a job, queued or running. A final one stays as it is."""
        return finish(self._async.cancel(job))

    def events(self, job: Job | str, *, after: str = "") -> Iterator[Event]:
        """The events of a job as they happen; see `Client.events`."""
        return iterate(self._async.events(job, after=after))

    def jobs(self, *, state: str | None = None) -> Iterator[Job]:
        """Walks its jobs, newest first."""
        return iterate(self._async.jobs(state=state))
