"""The blocking client of a farm."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from ._io import SyncIO, finish, iterate
from .aio import AsyncClient
from .models import Artifact, Event, Image, Job, Progress, Queue, SandboxInfo, Worker
from .results import ExecuteResult
from .rich import Rich

if TYPE_CHECKING:
    from .sandbox import Sandbox


class Client:
    """One farm. Any number of threads may share a client.

    Requests that start work carry an Idempotency-Key, so repeating one after a broken connection runs nothing twice. Reads,
    those and whole-file writes are repeated when the connection breaks or a part of the farm is down (503); anything is
    repeated when the farm refuses it for being too much at once (429). Where the farm says how long to wait, that is done.

    Args:
        url: address such as `http://127.0.0.1:8000`, with `/v1` or without; default: `SANDFARM_URL`, or else that one.
        api_key: default: `SANDFARM_API_KEY`; an empty one sends none.
        timeout: seconds for connecting, and for an answer over the time that it was asked to be held.
        retries: how many times a request is repeated.
        max_pause: seconds; a farm that asks for a longer pause is left to the caller.
        outage: seconds for which a wait for a job goes on though no farm answers: it may be starting again.
        progress: whether long waits draw a line on standard error; default: when it is a terminal.
        http_client: for proxies, certificates and the like; it is yours to close.

    Raises:
        ValueError: the address is none, or the key cannot be sent.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: int = 3,
        max_pause: float = 30.0,
        outage: float = 60.0,
        progress: bool | None = None,
        http_client: httpx.Client | None = None,
    ) -> None:
        self._async = AsyncClient(
            url,
            api_key,
            timeout=timeout,
            retries=retries,
            max_pause=max_pause,
            outage=outage,
            progress=progress,
            _io=SyncIO(http_client),
        )

    @property
    def url(self) -> str:
        """The farm's address."""
        return self._async.url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. Sandboxes stay, and the client can be used again."""
        finish(self._async.aclose())

    def __repr__(self) -> str:
        return f"Client({self.url})"

    # --- sandboxes ---------------------------------------------------------------------------------------------------

    def create(
        self,
        *,
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
    ) -> Sandbox:
        """Creates a sandbox and waits until it is ready. The arguments, and what is raised, are those of `Sandbox`."""
        from .sandbox import Sandbox

        return Sandbox(
            client=self,
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
        ).start()

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """A sandbox that is there already. Nothing is sent yet, and a `with` block does not close it."""
        from .sandbox import Sandbox

        return Sandbox(client=self, id=sandbox_id)

    def info(self, sandbox_id: str) -> SandboxInfo:
        """Reads a sandbox. A closed one stays readable for a day."""
        return finish(self._async.info(sandbox_id))

    def sandboxes(self, *, state: str | None = None, labels: Mapping[str, str] | None = None) -> Iterator[SandboxInfo]:
        """Walks the sandboxes, newest first.

        Args:
            state: only in these states, separated by commas.
            labels: only with all of these labels.
        """
        return iterate(self._async.sandboxes(state=state, labels=labels))

    # --- work --------------------------------------------------------------------------------------------------------

    def run(
        self,
        code: str,
        *,
        language: str | None = None,
        packages: str | Sequence[str] | None = None,
        files: Mapping[str, str | bytes] | None = None,
        auto_install: bool = False,
        env: Mapping[str, str] | None = None,
        network: str | None = None,
        image: str | None = None,
        gpu: int | Mapping[str, Any] | None = None,
        memory_mb: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        disk_mb: int | None = None,
        timeout: int | None = None,
        labels: Mapping[str, str] | None = None,
        callback_url: str | None = None,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        on_result: Callable[[Rich], Any] | None = None,
        on_artifact: Callable[[Artifact], Any] | None = None,
        on_progress: Callable[[Progress], Any] | None = None,
        wait_timeout: float | None = None,
        idempotency_key: str | None = None,
        check: bool = False,
    ) -> ExecuteResult:
        """Runs code in a fresh sandbox that is closed afterwards.

        Args:
            code: the code.
            language: one of the image's; default `python`.
            packages: Python packages to install first, such as `"humanize"` or `["pandas>=2"]`.
            files: what to put into the workspace first: content by path.
            auto_install: install what the code imports and the sandbox lacks.
            env: environment of the sandbox.
            network: `none`, `packages` (default), `allowlist` or `full`.
            image: name of the image (`images()`); default `python`.
            gpu: so many devices, or `{"count": 1, "model": "…"}`.
            memory_mb: MiB of memory.
            cpus: cores.
            pids: processes and threads.
            disk_mb: MiB of the workspace.
            timeout: seconds that the code may run, from 1 (default 300).
            labels: labels of the sandbox.
            callback_url: address that gets the finished job as well.
            on_stdout: gets output while it appears.
            on_stderr: gets standard error while it appears.
            on_result: gets displayed values while they appear.
            on_artifact: gets each file that was made.
            on_progress: gets what is being done before the code runs, such as an install.
            wait_timeout: seconds to wait at most.
            idempotency_key: a key of your own, to repeat this call from another process.
            check: raise `CodeError` where the code failed.

        Raises:
            InvalidError: an argument makes no sense to the farm.
            JobTimedOut: the code was over its timeout; `.result` has what there was until then.
            JobCanceled: somebody cancelled the job.
            JobError: it could not be run; the message says why.
            WaitTimeout: `wait_timeout` is over; the job goes on.
            CodeError: with `check`: the code raised or exited with another code than 0.
        """
        return finish(
            self._async.run(
                code,
                language=language,
                packages=packages,
                files=files,
                auto_install=auto_install,
                env=env,
                network=network,
                image=image,
                gpu=gpu,
                memory_mb=memory_mb,
                cpus=cpus,
                pids=pids,
                disk_mb=disk_mb,
                timeout=timeout,
                labels=labels,
                callback_url=callback_url,
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

    def batch(self, jobs: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None) -> list[Job | Exception]:
        """Starts many jobs at once, each with its own outcome.

        Args:
            jobs: entries `{"kind", "sandbox_id", …the body of the kind's route}`; kinds: `create`, `execute`, `command`,
                `run`, `close`, `interrupt`, `restart`.
            idempotency_key: a key of your own.

        Returns:
            in the same order, the accepted job or the error that refused it.
        """
        return finish(self._async.batch(jobs, idempotency_key=idempotency_key))

    # --- jobs --------------------------------------------------------------------------------------------------------

    def job(self, job: Job | str, *, wait: float = 0) -> Job:
        """Reads a job as it is now; with `wait` (seconds, at most 60) once it is final, or then."""
        return finish(self._async.job(job, wait=wait))

    def jobs(self, *, sandbox_id: str | None = None, state: str | None = None) -> Iterator[Job]:
        """Walks the jobs, newest first."""
        return iterate(self._async.jobs(sandbox_id=sandbox_id, state=state))

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
        """The events of a job as they happen, from the first one or behind the one with the id `after`, until its final state.

        Where the connection breaks it goes on behind the last one. A finished job gives all of its events again.
        """
        return iterate(self._async.events(job, after=after))

    # --- artifacts ---------------------------------------------------------------------------------------------------

    def artifacts(self, *, sandbox_id: str | None = None, job: Job | str | None = None) -> Iterator[Artifact]:
        """Walks the files that jobs made, newest first."""
        return iterate(self._async.artifacts(sandbox_id=sandbox_id, job=job))

    def artifact(self, artifact: Artifact | str) -> Artifact:
        """Reads an artifact by its id, with a fresh link."""
        return finish(self._async.artifact(artifact))

    def artifact_url(self, artifact: Artifact | str) -> str:
        """Makes a fresh link. Anybody may download with it until it expires."""
        return finish(self._async.artifact_url(artifact))

    def read_artifact(self, artifact: Artifact | str) -> bytes:
        """The whole content, in memory."""
        return finish(self._async.read_artifact(artifact))

    def save_artifact(self, artifact: Artifact | str, path: str | os.PathLike[str] | None = None) -> Path:
        """Downloads to a file, or into a directory; default: the current one, under the artifact's name.

        Any size is streamed, and goes on where a connection broke. The file appears when it is whole.

        Returns:
            where it is now.
        """
        return finish(self._async.save_artifact(artifact, path))

    # --- the farm ----------------------------------------------------------------------------------------------------

    def images(self) -> list[Image]:
        """The sandbox images on offer."""
        return finish(self._async.images())

    def languages(self, image: str = "python") -> tuple[str, ...]:
        """The languages that an image runs; none for an image that is not on offer."""
        return finish(self._async.languages(image))

    def workers(self) -> list[Worker]:
        """Who serves the farm now."""
        return finish(self._async.workers())

    def queues(self) -> list[Queue]:
        """How deep the queues are."""
        return finish(self._async.queues())

    def limits(self) -> dict[str, Any]:
        """The farm's bounds on what may be asked for, as `GET /v1/limits` names them."""
        return finish(self._async.limits())

    def health(self) -> dict[str, Any]:
        """`{"status": "ok", "version"}` when the API is alive.

        Raises:
            UnavailableError: it cannot be reached.
        """
        return finish(self._async.health())

    def ready(self) -> dict[str, Any]:
        """`{"status": "ready", "parts"}` when everything that jobs need is there.

        Raises:
            UnavailableError: a part is missing, or the farm cannot be reached.
        """
        return finish(self._async.ready())
