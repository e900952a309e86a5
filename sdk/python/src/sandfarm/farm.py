"""What a farm offers besides its sandboxes: single runs, jobs, artifacts, images, workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ._io import finish, iterate
from .aio_farm import AsyncFarm
from .models import (
    Artifact,
    AuditEntry,
    Event,
    FleetEvent,
    Image,
    Job,
    Key,
    Minute,
    NewKey,
    NodeNeed,
    Progress,
    Queue,
    SandboxInfo,
    Worker,
)
from .network import Secret
from .results import ExecuteResult
from .rich import Rich


class Farm:
    """Base class of `Client`, without the methods that return sandboxes."""

    def __init__(self, farm: AsyncFarm) -> None:
        self._async = farm

    @property
    def url(self) -> str:
        """The farm's address."""
        return self._async.url

    def close(self) -> None:
        """Closes the connections. Sandboxes stay open, and the client can be used again."""
        finish(self._async.aclose())

    # --- sandboxes ---------------------------------------------------------------------------------------------------

    def info(self, sandbox_id: str) -> SandboxInfo:
        """Returns a snapshot of a sandbox. Closed sandboxes are readable for a day."""
        return finish(self._async.info(sandbox_id))

    def sandboxes(
        self,
        *,
        state: str | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[SandboxInfo]:
        """Iterates over the sandboxes, newest first: those closed in the last day, too, unless `state` leaves them out.

        Args:
            state: only sandboxes in these states, separated by commas; `"queued,starting,ready,busy,hibernated"` are open.
            labels: only sandboxes with all of these labels.
            name: only sandboxes with this name.
            created_after: only sandboxes that were created after this time.
            created_before: only sandboxes that were created before this time.
        """
        return iterate(
            self._async.sandboxes(
                state=state, labels=labels, name=name, created_after=created_after, created_before=created_before
            )
        )

    # --- work --------------------------------------------------------------------------------------------------------

    def run(
        self,
        code: str,
        *,
        language: str | None = None,
        filename: str | None = None,
        packages: str | Sequence[str] | None = None,
        files: Mapping[str, str | bytes] | None = None,
        auto_install: bool = False,
        on_output_limit: str | None = None,
        env: Mapping[str, str] | None = None,
        network: str | None = None,
        allow_hosts: Sequence[str] | None = None,
        secrets: Mapping[str, Secret] | None = None,
        runtime: str | None = None,
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
        on_clear: Callable[[bool], Any] | None = None,
        on_artifact: Callable[[Artifact], Any] | None = None,
        on_progress: Callable[[Progress], Any] | None = None,
        wait_timeout: float | None = None,
        idempotency_key: str | None = None,
        check: bool = False,
    ) -> ExecuteResult:
        """Runs code in a new sandbox, which is closed afterwards.

        Args:
            code: the code.
            language: a language of the image; default `python`.
            filename: name of the file in the workspace that the code is from: its `__file__` and `sys.argv[0]`; errors name
                it. Python only. The file itself need not be there, unless child processes load it (multiprocessing).
            packages: Python packages to install first, such as `"humanize"` or `["pandas>=2"]`.
            files: files to put into the workspace first: content by path.
            auto_install: install packages that the code imports and the sandbox does not have.
            on_output_limit: what happens when stdout or stderr exceeds the farm's limit (100 MiB): `continue` (default)
                drops the middle of the output, `stop` ends the code.
            env: environment variables of the sandbox.
            network: `none`, `packages` (default) or `allowlist`, which the operator must enable.
            allow_hosts: hosts that the network `allowlist` reaches.
            secrets: headers that the farm adds to requests for a host, by the name of a variable with a placeholder.
            runtime: OCI runtime, such as `runsc` (gVisor), if the operator allows it.
            image: name of the image (`images()`); default `python`.
            gpu: number of devices, or `{"count": 1, "model": "…"}`.
            memory_mb: MiB of memory.
            cpus: cores.
            pids: processes and threads.
            disk_mb: MiB of the workspace.
            timeout: seconds that the code may run, from 1 (default 300).
            labels: labels of the sandbox.
            callback_url: the farm also sends the finished job to this URL.
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
            InvalidError: an argument is not valid.
            JobTimedOut: the code exceeded its timeout; `.result` has the output until then.
            JobCanceled: the job was canceled.
            JobError: the code could not run; the message says why.
            WaitTimeout: `wait_timeout` has expired; the job continues.
            CodeError: with `check`: the code raised, or its exit code is not 0.
        """
        return finish(
            self._async.run(
                code,
                language=language,
                filename=filename,
                packages=packages,
                files=files,
                auto_install=auto_install,
                on_output_limit=on_output_limit,
                env=env,
                network=network,
                allow_hosts=allow_hosts,
                secrets=secrets,
                runtime=runtime,
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
                on_clear=on_clear,
                on_artifact=on_artifact,
                on_progress=on_progress,
                wait_timeout=wait_timeout,
                idempotency_key=idempotency_key,
                check=check,
            )
        )

    def batch(self, jobs: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None) -> list[Job | Exception]:
        """Submits many jobs in one request. Each is accepted or refused by itself.

        Args:
            jobs: objects `{"kind", "sandbox_id", …the body of the route of this kind}`; kinds: `create`, `execute`, `command`,
                `run`, `close`, `interrupt`, `restart`.
            idempotency_key: your own key.

        Returns:
            for each entry, in the same order: the accepted job, or the error.
        """
        return finish(self._async.batch(jobs, idempotency_key=idempotency_key))

    # --- jobs --------------------------------------------------------------------------------------------------------

    def job(self, job: Job | str, *, wait: float = 0) -> Job:
        """Returns a snapshot of a job. With `wait`, waits up to so many seconds (at most 60) for it to be final."""
        return finish(self._async.job(job, wait=wait))

    def jobs(
        self,
        *,
        sandbox_id: str | None = None,
        state: str | None = None,
        kind: str | None = None,
        outcome: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[Job]:
        """Iterates over the jobs, newest first.

        Args:
            sandbox_id: only jobs of this sandbox.
            state: only jobs in these states, separated by commas.
            kind: only jobs of these kinds, separated by commas.
            outcome: only jobs with this outcome, `ok` or `failed`.
            created_after: only jobs that were created after this time.
            created_before: only jobs that were created before this time.
        """
        return iterate(
            self._async.jobs(
                sandbox_id=sandbox_id,
                state=state,
                kind=kind,
                outcome=outcome,
                created_after=created_after,
                created_before=created_before,
            )
        )

    def wait(self, job: Job | str, *, timeout: float | None = None) -> Job:
        """Waits until a job is final. It raises nothing if the job failed: look at `state`.

        Raises:
            WaitTimeout: the job is not final after `timeout` seconds; it continues.
        """
        return finish(self._async.wait(job, timeout=timeout))

    def cancel(self, job: Job | str) -> Job:
        """Cancels a job, queued or running. A final job does not change."""
        return finish(self._async.cancel(job))

    def events(self, job: Job | str, *, after: str = "") -> Iterator[Event]:
        """Iterates over the events of a job as they happen, from the first or behind the id `after`, until its final state.

        When the connection breaks, the stream resumes behind the last event. A finished job returns all of its events.
        """
        return iterate(self._async.events(job, after=after))

    # --- artifacts ---------------------------------------------------------------------------------------------------

    def artifacts(
        self,
        *,
        sandbox_id: str | None = None,
        job: Job | str | None = None,
        name: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[Artifact]:
        """Iterates over the files that jobs created, newest first.

        Args:
            sandbox_id: only artifacts of this sandbox.
            job: only artifacts of this job.
            name: only artifacts with this name, the last element of the path.
            created_after: only artifacts that were created after this time.
            created_before: only artifacts that were created before this time.
        """
        return iterate(
            self._async.artifacts(
                sandbox_id=sandbox_id, job=job, name=name, created_after=created_after, created_before=created_before
            )
        )

    def artifact(self, artifact: Artifact | str) -> Artifact:
        """Returns an artifact by its id, with a new link."""
        return finish(self._async.artifact(artifact))

    def artifact_url(self, artifact: Artifact | str) -> str:
        """Makes a new link. Anybody who has it can download until it expires."""
        return finish(self._async.artifact_url(artifact))

    def read_artifact(self, artifact: Artifact | str) -> bytes:
        """Downloads the content into memory."""
        return finish(self._async.read_artifact(artifact))

    def save_artifact(self, artifact: Artifact | str, path: str | os.PathLike[str] | None = None) -> Path:
        """Downloads to a file or into a directory. Default: the current directory, under the artifact's name.

        A file of that name in a directory is kept, and the new one is called `name-1`: the sandbox chose the name. The path of
        a file replaces it.

        The content is streamed. When the connection breaks, the download resumes. The file appears when it is complete.

        Returns:
            the path of the local file.

        Raises:
            InvalidError: `path` is a directory and other programs would load a file of this name, such as `Makefile` or
                `.bashrc`: pass the path of a file.
        """
        return finish(self._async.save_artifact(artifact, path))

    def delete_artifact(self, artifact: Artifact | str) -> None:
        """Deletes an artifact. Its links stop working."""
        finish(self._async.delete_artifact(artifact))

    # --- the farm ----------------------------------------------------------------------------------------------------

    def images(self) -> list[Image]:
        """The sandbox images of the farm."""
        return finish(self._async.images())

    def languages(self, image: str = "python") -> tuple[str, ...]:
        """The languages of an image; empty if there is no such image."""
        return finish(self._async.languages(image))

    def workers(self) -> list[Worker]:
        """The live workers."""
        return finish(self._async.workers())

    def queues(self) -> list[Queue]:
        """The queues and how many jobs are in them."""
        return finish(self._async.queues())

    def activity(self) -> list[Minute]:
        """The minutes of the last hour, the oldest first, with what became of jobs. Your key needs the scope `admin`."""
        return finish(self._async.activity())

    def fleet_events(self) -> list[FleetEvent]:
        """What happened to workers and nodes, the newest first; the farm keeps 200. Your key needs the scope `admin`."""
        return finish(self._async.fleet_events())

    def scale(self) -> list[NodeNeed]:
        """How many nodes of each kind the farm needs for what waits. Your key needs the scope `admin`."""
        return finish(self._async.scale())

    def limits(self) -> dict[str, Any]:
        """The limits of the farm, with the names of `GET /v1/limits`."""
        return finish(self._async.limits())

    def usage(self, days: int | None = None) -> dict[str, Any]:
        """Your quotas, what is used of them, and what was used on each day, with the names of `GET /v1/usage`.

        Args:
            days: of how many days, today included (default 30).
        """
        return finish(self._async.usage(days))

    def create_key(
        self, tenant: str, *, name: str = "", scopes: Sequence[str] | None = None, expires: int | None = None
    ) -> NewKey:
        """Makes an API key, which counts at once. Your own key needs the scope `admin`, as for the other methods of keys.

        Args:
            tenant: owner of what is created with the key.
            name: free text, such as who has the key.
            scopes: what the key may do: `run` (default), `read`, `metrics`, `admin`.
            expires: seconds until the key expires (default: never).

        Returns:
            the record of the key and, only here, the key itself: `.secret`.
        """
        return finish(self._async.create_key(tenant, name=name, scopes=scopes, expires=expires))

    def keys(self, *, tenant: str | None = None) -> Iterator[Key]:
        """Iterates over the API keys, newest first. The keys themselves are not shown.

        Args:
            tenant: only keys of this tenant.
        """
        return iterate(self._async.keys(tenant=tenant))

    def revoke_key(self, key: Key | str) -> None:
        """Revokes an API key. Requests in progress with it end within seconds; jobs that it started continue."""
        finish(self._async.revoke_key(key))

    def audit(
        self,
        *,
        tenant: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[AuditEntry]:
        """Iterates over the audit, newest first: who asked for what, from where, and what came of it.

        Args:
            tenant: only entries of this tenant.
            created_after: only entries after this time.
            created_before: only entries before this time.
        """
        return iterate(self._async.audit(tenant=tenant, created_after=created_after, created_before=created_before))

    def health(self) -> dict[str, Any]:
        """`{"status": "ok", "version"}` if the API is alive.

        Raises:
            UnavailableError: the farm cannot be reached.
        """
        return finish(self._async.health())

    def ready(self) -> dict[str, Any]:
        """`{"status": "ready", "parts"}` if everything that jobs need is available.

        Raises:
            UnavailableError: a component is missing, or the farm cannot be reached.
        """
        return finish(self._async.ready())
