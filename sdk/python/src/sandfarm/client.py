"""The blocking client of a farm, and its sandboxes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from ._io import SyncIO, finish, iterate
from .aio import AsyncClient, AsyncSandbox
from .aio_processes import LOGIN_SHELL
from .farm import Farm
from .files import Artifacts, Files, Packages
from .fs import FS
from .live import PortInfo
from .models import Event, Job, SandboxInfo
from .network import EgressEntry, Secret
from .ports import Port
from .processes import Process, Processes
from .runner import Runner


class Client(Farm):
    """One farm. Any number of threads may share a client.

    A request that starts a job has an Idempotency-Key, so a retry after a broken connection runs nothing twice. Those
    requests, reads and whole-file writes are retried when the connection breaks or the farm answers 503. Every request is
    retried when the farm answers 429. The client waits for as long as the farm says in Retry-After.

    Args:
        url: address such as `http://127.0.0.1:8000`, with or without `/v1`. Default: `SANDFARM_URL`, or else this address.
        api_key: default: `SANDFARM_API_KEY`, or the key in the file `SANDFARM_API_KEY_FILE`. With an empty key none is sent.
        timeout: seconds to connect, and to wait for an answer beyond the time that the farm may hold the request.
        retries: how many times a request is retried.
        max_pause: seconds; if the farm asks for a longer pause, the error is raised instead.
        outage: for how many seconds to wait for a job while the farm does not answer, because it may be restarting.
        progress: whether long waits draw a progress line on standard error. Default: if it is a terminal.
        http_client: your own httpx client, such as for proxies and certificates. You close it.

    Raises:
        InvalidError: the address is not valid.
        ValueError: the key cannot be sent.
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
        io = SyncIO(http_client)
        self._async: AsyncClient = AsyncClient(
            url, api_key, timeout=timeout, retries=retries, max_pause=max_pause, outage=outage, progress=progress, _io=io
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url})"

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
        runtime: str | None = None,
        allow_hosts: Sequence[str] | None = None,
        secrets: Mapping[str, Secret] | None = None,
        env: Mapping[str, str] | None = None,
        ttl: int | None = None,
        idle: int | None = None,
        on_idle: str | None = None,
        labels: Mapping[str, str] | None = None,
        keep: bool = False,
    ) -> Sandbox:
        """Creates a sandbox and waits until it is ready. Arguments and errors are those of `Sandbox`."""
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

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """A handle of an existing sandbox. It sends no request, and a `with` block does not close the sandbox."""
        return Sandbox(client=self, id=sandbox_id)


class Sandbox(Runner):
    """One sandbox. It is created on first use, and closed at the end of a `with` block.

    ```python
    with Sandbox(packages=["humanize"]) as box:
        box.run("import humanize")
        print(box.run("humanize.intcomma(1234567)"))
    ```

    Any number of threads may share it. The farm runs its jobs one at a time, in order.

    Args:
        id: id of an existing sandbox, which a `with` block does not close.
        packages: Python packages to install first, such as `"humanize"` or `["pandas>=2"]`.
        name: name of the sandbox; need not be unique.
        image: name of the image (`Client.images`); default `python`.
        gpu: number of devices, or `{"count": 1, "model": "…"}`.
        memory_mb: MiB of memory. Files in the workspace count.
        cpus: cores.
        pids: processes and threads.
        disk_mb: MiB of the workspace.
        network: `none`, `packages` (default) or `allowlist`, which the operator must enable.
        runtime: OCI runtime, such as `runsc` (gVisor), if the operator allows it.
        allow_hosts: hosts that the network `allowlist` reaches, such as `api.github.com`, `*.example.com:8443`.
        secrets: headers that the farm adds to requests for a host, by the name of a variable with a placeholder.
        env: environment variables.
        ttl: lifetime in seconds.
        idle: how many seconds it may be idle; 0: no limit.
        on_idle: what happens then: `close` (default) or `hibernate`, which needs the runtime `runsc`.
        labels: labels, to find it by.
        keep: leave it open at the end of a `with` block.
        client: the client to use. Default: its own, with `url` and `api_key`.
        url: address of the farm. Default: `SANDFARM_URL`, or else `http://127.0.0.1:8000`.
        api_key: default: `SANDFARM_API_KEY`, or the key in the file `SANDFARM_API_KEY_FILE`.

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
        client: Client | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._owns_client = client is None
        self._client = client or Client(url, api_key)
        self._async: AsyncSandbox = AsyncSandbox(
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
            runtime=runtime,
            allow_hosts=allow_hosts,
            secrets=secrets,
            env=env,
            ttl=ttl,
            idle=idle,
            on_idle=on_idle,
            labels=labels,
            keep=keep,
            client=self._client._async,
        )
        self._async._owns_client = self._owns_client
        self.files = Files(self._async.files)
        self.fs = FS(self._async.fs)
        self.artifacts = Artifacts(self._async.artifacts)
        self.packages = Packages(self._async.packages)
        self.processes = Processes(self._async.processes)

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

    # --- lifetime ----------------------------------------------------------------------------------------------------

    def start(self) -> Sandbox:
        """Creates it if it does not exist yet, and waits until it is ready.

        Raises:
            InvalidError: an argument is not valid.
            ExhaustedError: the farm accepts no more sandboxes for now.
            JobError: it could not be created.
            PackageError: a package could not be installed. The sandbox is closed again.
        """
        finish(self._async.start())
        return self

    def close(self) -> None:
        """Cancels its jobs and removes it. Its artifacts stay. Closing it again does nothing."""
        finish(self._async.close())

    def __enter__(self) -> Sandbox:
        return self.start()

    def __exit__(self, *raised: Any) -> None:
        finish(self._async.__aexit__(*raised))

    def info(self) -> SandboxInfo:
        """Returns a snapshot: state, limits, when it expires. This does not reset its idle time."""
        return finish(self._async.info())

    def update(
        self,
        *,
        name: str | None = None,
        ttl: int | None = None,
        idle: int | None = None,
        labels: Mapping[str, str] | None = None,
        allow_hosts: Sequence[str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> SandboxInfo:
        """Changes its name, lifetime, labels or hosts, or values of its secrets, by their names.

        New labels and hosts replace the old ones. Requests from then on have the new values. None changes nothing.
        """
        return finish(
            self._async.update(name=name, ttl=ttl, idle=idle, labels=labels, allow_hosts=allow_hosts, secrets=secrets)
        )

    def keep_alive(self, ttl: int) -> SandboxInfo:
        """Sets its lifetime to so many seconds from now."""
        return finish(self._async.keep_alive(ttl))

    def egress(self, *, after: str = "") -> Iterator[EgressEntry]:
        """Iterates over the connections that it asked for with the network `allowlist`, the oldest first.

        Args:
            after: id of an entry: only what follows it.
        """
        return iterate(self._async.egress(after=after))

    # --- live --------------------------------------------------------------------------------------------------------

    def terminal(self, command: str = LOGIN_SHELL, *, cols: int = 80, rows: int = 24) -> Process:
        """Starts a process on a terminal, by default a login shell. Write to it, read its output, resize it, end it.

        Args:
            command: for the shell.
            cols: columns, 1 to 1000.
            rows: rows, 1 to 1000.
        """
        return Process(finish(self._async.terminal(command, cols=cols, rows=rows)))

    def port(self, number: int) -> Port:
        """A port of its loopback: `port(8888).url` leads to a server there, `port(8888).link()` also without a key."""
        return Port(self._async.port(number))

    def ports(self) -> list[PortInfo]:
        """Lists the ports on which its programs listen."""
        return finish(self._async.ports())

    # --- jobs --------------------------------------------------------------------------------------------------------

    def poll(self, job: Job | str) -> Job:
        """Returns a snapshot of a job. `job.final` says whether it has ended."""
        return finish(self._async.poll(job))

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
        """Iterates over the events of a job as they happen; see `Client.events`."""
        return iterate(self._async.events(job, after=after))

    def jobs(self, *, state: str | None = None) -> Iterator[Job]:
        """Iterates over its jobs, newest first."""
        return iterate(self._async.jobs(state=state))
