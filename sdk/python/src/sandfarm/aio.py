"""The asynchronous client and its sandboxes. `Client` and `Sandbox` have the same methods for blocking callers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from . import _bodies
from . import _decode as d
from ._handle import Handle
from ._http import Call
from .aio_farm import AsyncFarm
from .aio_files import AsyncArtifacts, AsyncFiles, AsyncPackages
from .aio_fs import AsyncFS
from .aio_ports import AsyncPort, ports
from .aio_processes import LOGIN_SHELL, AsyncProcess, AsyncProcesses
from .aio_runner import AsyncRunner
from .errors import SandfarmError
from .live import PortInfo
from .models import Event, Job, SandboxInfo
from .network import EgressEntry, Secret


class AsyncClient(AsyncFarm):
    """One farm, for asyncio. Any number of tasks may share a client.

    Close it in the event loop that used it; another loop opens new connections. Every method is the awaitable form of the
    one in `Client`.
    """

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def create(
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
        runtime: str | None = None,
        allow_hosts: Sequence[str] | None = None,
        secrets: Mapping[str, Secret] | None = None,
        env: Mapping[str, str] | None = None,
        ttl: int | None = None,
        idle: int | None = None,
        on_idle: str | None = None,
        labels: Mapping[str, str] | None = None,
        keep: bool = False,
    ) -> AsyncSandbox:
        """See `Client.create`."""
        return await AsyncSandbox(
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
            runtime=runtime,
            allow_hosts=allow_hosts,
            secrets=secrets,
            env=env,
            ttl=ttl,
            idle=idle,
            on_idle=on_idle,
            labels=labels,
            keep=keep,
        ).start()

    def sandbox(self, sandbox_id: str) -> AsyncSandbox:
        """See `Client.sandbox`."""
        return AsyncSandbox(client=self, id=sandbox_id)


class AsyncSandbox(AsyncRunner):
    """One sandbox, for asyncio. It is created on first use.

    Every argument and method is that of `Sandbox`; methods are awaitable.

    Attributes:
        files: its workspace.
        fs: all its files, at once and beside running jobs.
        artifacts: the files that its jobs created.
        packages: its packages.
        processes: what runs beside its jobs.
    """

    def __init__(
        self,
        *,
        id: str | None = None,  # noqa: A002 # the natural name
        packages: str | Sequence[str] | None = None,
        name: str | None = None,
        image: str | None = None,
        gpu: int | Mapping[str, Any] | None = None,
        memory_mb: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        disk_mb: int | None = None,
        network: str | None = None,
        runtime: str | None = None,
        allow_hosts: Sequence[str] | None = None,
        secrets: Mapping[str, Secret] | None = None,
        env: Mapping[str, str] | None = None,
        ttl: int | None = None,
        idle: int | None = None,
        on_idle: str | None = None,
        labels: Mapping[str, str] | None = None,
        keep: bool = False,
        client: AsyncClient | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._owns_client = client is None
        self._client = client or AsyncClient(url, api_key)
        self._keep = keep or id is not None
        body = _bodies.compact(
            name=name,
            image=image,
            gpu=_bodies.gpu_request(gpu),
            resources=_bodies.resources(memory_mb, cpus, pids, disk_mb),
            network=network,
            runtime=runtime,
            allow_hosts=_bodies.string_list(allow_hosts),
            secrets=_bodies.secrets(secrets),
            env=env,
            packages=_bodies.string_list(packages),
            ttl_seconds=ttl,
            idle_seconds=idle,
            on_idle=on_idle,
            labels=labels,
        )
        super().__init__(Handle(self._client, id or "", body))
        self.files = AsyncFiles(self._handle)
        self.fs = AsyncFS(self._handle)
        self.artifacts = AsyncArtifacts(self._handle)
        self.packages = AsyncPackages(self._handle)
        self.processes = AsyncProcesses(self._handle)

    @property
    def id(self) -> str:
        """Its id, such as `sbx_…`; empty until it is created."""
        return self._handle.known_id

    @property
    def client(self) -> AsyncClient:
        """The client that it uses."""
        return self._client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id or 'not created'})"

    # --- lifetime ----------------------------------------------------------------------------------------------------

    async def start(self) -> AsyncSandbox:
        """See `Sandbox.start`."""
        await self._handle.id()
        return self

    async def close(self) -> None:
        """See `Sandbox.close`."""
        try:
            await self._handle.close()
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
                if kind is None:  # the exception of the block is more important
                    raise
        elif self._owns_client:
            await self._client.aclose()

    async def info(self) -> SandboxInfo:
        """See `Sandbox.info`."""
        return await self._client.info(await self._handle.last_id())

    async def update(
        self,
        *,
        name: str | None = None,
        ttl: int | None = None,
        idle: int | None = None,
        labels: Mapping[str, str] | None = None,
        allow_hosts: Sequence[str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> SandboxInfo:
        """See `Sandbox.update`."""
        hosts = _bodies.string_list(allow_hosts)
        values = None if secrets is None else {name: {"value": value} for name, value in secrets.items()}
        body = _bodies.compact(name=name, ttl_seconds=ttl, idle_seconds=idle, labels=labels, allow_hosts=hosts, secrets=values)
        return d.build(SandboxInfo, await self._handle.http.json(Call("PATCH", await self._handle.path(), body=body)))

    async def keep_alive(self, ttl: int) -> SandboxInfo:
        """See `Sandbox.keep_alive`."""
        return await self.update(ttl=ttl)

    async def egress(self, *, after: str = "") -> AsyncIterator[EgressEntry]:
        """See `Sandbox.egress`."""
        while True:
            query = [("limit", "1000"), *([("after", after)] if after else [])]
            page = await self._handle.http.json(Call("GET", await self._handle.path("egress"), query=query), "items")
            for item in page["items"]:
                entry = d.build(EgressEntry, item)
                after = entry.id
                yield entry
            if not page.get("next_cursor"):
                return

    # --- live --------------------------------------------------------------------------------------------------------

    async def terminal(self, command: str = LOGIN_SHELL, *, cols: int = 80, rows: int = 24) -> AsyncProcess:
        """See `Sandbox.terminal`."""
        return await self.processes.start(command, pty=(cols, rows))

    def port(self, number: int) -> AsyncPort:
        """See `Sandbox.port`."""
        return AsyncPort(self._handle, number)

    async def ports(self) -> list[PortInfo]:
        """See `Sandbox.ports`."""
        return await ports(self._handle)

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
        sandbox_id = await self._handle.last_id()
        async with aclosing(self._client.jobs(sandbox_id=sandbox_id, state=state)) as jobs:  # type: ignore[type-var]
            async for job in jobs:
                yield job
