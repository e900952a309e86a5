"""The asynchronous sandbox. `Sandbox` has the same methods for callers that block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from . import _bodies
from . import _decode as d
from ._http import Call
from ._jobs import Jobs, Watch
from .aio import AsyncClient
from .aio_files import AsyncArtifacts, AsyncFiles, AsyncPackages
from .errors import ConflictError, NotFoundError, SandfarmError
from .models import Artifact, Event, Job, Progress, SandboxInfo
from .results import CommandResult, ExecuteResult, InstallResult
from .rich import Rich


class AsyncSandbox:
    """One sandbox, for asyncio. It is created when it is first used.

    Every argument and method is that of the same name in `Sandbox`, to be awaited; see there.

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
        client: AsyncClient | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._owns_client = client is None
        self._client = client or AsyncClient(url, api_key)
        self._lock = self._client._http.io.lock()
        self._id = id or ""
        self._keep = keep or id is not None
        self._ended = False
        self._closed = False
        self._body = _bodies.compact(
            name=name,
            image=image,
            gpu=_bodies.devices(gpu),
            resources=_bodies.resources(memory_mb, cpus, pids, disk_mb),
            network=network,
            allow_hosts=_bodies.names(allow_hosts),
            env=env,
            packages=_bodies.names(packages),
            ttl_seconds=ttl,
            idle_seconds=idle,
            labels=labels,
        )
        self.files = AsyncFiles(self)
        self.artifacts = AsyncArtifacts(self)
        self.packages = AsyncPackages(self)

    @property
    def id(self) -> str:
        """Its id, such as `sbx_…`; empty until it is created."""
        return self._id

    @property
    def client(self) -> AsyncClient:
        """The client that it uses."""
        return self._client

    @property
    def _jobs(self) -> Jobs:
        return self._client._jobs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._id or 'not created'})"

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> AsyncSandbox:
        """See `Sandbox.start`."""
        await self._started()
        return self

    async def _started(self) -> str:
        """Its id, after creating it if nobody has."""
        async with self._lock:
            if self._ended:
                which = f"the sandbox {self._id}" if self._id else "this sandbox"
                raise ConflictError(f"{which} is closed: make a new one", code="conflict")
            if self._id:
                return self._id
            job = await self._jobs.perform(Call("POST", ("v1", "sandboxes"), body=self._body), title="creating a sandbox")
            if isinstance(job.result, InstallResult) and not job.result.ok:
                await self._client._http.io.settle(self._client._http.json(Call("DELETE", ("v1", "sandboxes", job.sandbox_id))))
                job.result.check()
            self._id = job.sandbox_id
            return self._id

    async def close(self) -> None:
        """See `Sandbox.close`."""
        async with self._lock:
            self._ended = True
            if self._closed:
                return
            try:
                if self._id:
                    with suppress(ConflictError, NotFoundError):  # it is gone
                        await self._client._http.json(Call("DELETE", ("v1", "sandboxes", self._id), wait=30))
                self._closed = True
            finally:
                if self._owns_client:
                    await self._client.aclose()

    async def __aenter__(self) -> AsyncSandbox:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if not self._keep:
            try:
                await self.close()
            except SandfarmError:
                if kind is None:  # what the block raised says more
                    raise
        elif self._owns_client:
            await self._client.aclose()

    async def info(self) -> SandboxInfo:
        """See `Sandbox.info`."""
        return await self._client.info(self._id or await self._started())

    async def update(
        self,
        *,
        name: str | None = None,
        ttl: int | None = None,
        idle: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> SandboxInfo:
        """See `Sandbox.update`."""
        body = _bodies.compact(name=name, ttl_seconds=ttl, idle_seconds=idle, labels=labels)
        return d.build(
            SandboxInfo, await self._client._http.json(Call("PATCH", ("v1", "sandboxes", await self._started()), body=body))
        )

    async def keep_alive(self, ttl: int) -> SandboxInfo:
        """See `Sandbox.keep_alive`."""
        return await self.update(ttl=ttl)

    # --- code --------------------------------------------------------------------------------------------------------

    async def run(
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
        """See `Sandbox.run`."""
        body = _bodies.execute(
            code, language=language, context=context, timeout=timeout, env=env, auto_install=auto_install, callback_url=None
        )
        job = await self._jobs.perform(
            Call("POST", await self._at("execute"), body=body),
            title="running",
            watch=Watch(on_stdout, on_stderr, on_result, on_artifact, on_progress),
            wait_timeout=wait_timeout,
            key=idempotency_key,
        )
        result: ExecuteResult = job.result
        return result.check() if check else result

    async def submit(
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
        """See `Sandbox.submit`."""
        body = _bodies.execute(
            code,
            language=language,
            context=context,
            timeout=timeout,
            env=env,
            auto_install=auto_install,
            callback_url=callback_url,
        )
        return await self._jobs.start(Call("POST", await self._at("execute"), body=body, key=idempotency_key or ""))

    async def languages(self) -> tuple[str, ...]:
        """See `Sandbox.languages`."""
        return await self._client.languages((await self.info()).image)

    async def interrupt(self, context: str | None = None) -> Job:
        """See `Sandbox.interrupt`."""
        return await self._control("interrupt", context)

    async def restart(self, context: str | None = None) -> Job:
        """See `Sandbox.restart`."""
        return await self._control("restart", context)

    # --- commands ----------------------------------------------------------------------------------------------------

    async def bash(
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
        """See `Sandbox.bash`."""
        body = _bodies.command(
            command, cwd=cwd, env=env, timeout=timeout, continue_on_error=continue_on_error, background=False, callback_url=None
        )
        job = await self._jobs.perform(
            Call("POST", await self._at("commands"), body=body),
            title="running a command",
            watch=Watch(stdout=on_stdout, stderr=on_stderr, artifact=on_artifact),
            wait_timeout=wait_timeout,
            key=idempotency_key,
        )
        result: CommandResult = job.result
        return result.check() if check else result

    async def submit_bash(
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
        """See `Sandbox.submit_bash`."""
        body = _bodies.command(
            command,
            cwd=cwd,
            env=env,
            timeout=timeout,
            continue_on_error=continue_on_error,
            background=background,
            callback_url=callback_url,
        )
        return await self._jobs.start(Call("POST", await self._at("commands"), body=body, key=idempotency_key or ""))

    # --- jobs --------------------------------------------------------------------------------------------------------

    async def poll(self, job: Job | str) -> Job:
        """See `Sandbox.poll`."""
        return await self._client.job(job)

    async def wait(self, job: Job | str, *, timeout: float | None = None) -> Job:
        """See `Sandbox.wait`."""
        return await self._client.wait(job, timeout=timeout)

    async def cancel(self, job: Job | str) -> Job:
        """See `Sandbox.cancel`."""
        return await self._client.cancel(job)

    async def events(self, job: Job | str, *, after: str = "") -> AsyncIterator[Event]:
        """See `Sandbox.events`."""
        async with aclosing(self._client.events(job, after=after)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    async def jobs(self, *, state: str | None = None) -> AsyncIterator[Job]:
        """See `Sandbox.jobs`."""
        async with aclosing(self._client.jobs(sandbox_id=await self._started(), state=state)) as jobs:  # type: ignore[type-var]
            async for job in jobs:
                yield job

    async def _control(self, what: str, context: str | None) -> Job:
        body = {"context": context} if context else None
        return await self._jobs.perform(Call("POST", await self._at(what), body=body), title=what)

    async def _at(self, what: str) -> tuple[str, ...]:
        return ("v1", "sandboxes", await self._started(), what)
