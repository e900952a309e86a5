"""What a farm offers besides its sandboxes, for asyncio: single runs, jobs, artifacts, images, workers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import httpx

from . import _bodies
from . import _decode as d
from ._http import Call, Http, Settings
from ._io import IO, AsyncIO
from ._jobs import Callbacks, Jobs, decode_job
from ._transfer import read_all, save
from .errors import error_from_problem
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

T = TypeVar("T")

_PAGE_SIZE = "200"  # the largest that the farm accepts


class AsyncFarm:
    """Base class of `AsyncClient`, without the methods that return sandboxes."""

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
        http_client: httpx.AsyncClient | None = None,
        _io: IO | None = None,
    ) -> None:
        io: IO = _io if _io is not None else AsyncIO(http_client)
        self._http = Http(Settings.make(url, api_key, timeout, retries, max_pause, outage), io)
        self._jobs = Jobs(self._http, progress)

    @property
    def url(self) -> str:
        """The farm's address."""
        return self._http.settings.url

    async def aclose(self) -> None:
        """See `Client.close`."""
        await self._http.io.close()

    # --- sandboxes ---------------------------------------------------------------------------------------------------

    async def info(self, sandbox_id: str) -> SandboxInfo:
        """See `Client.info`."""
        return d.build(SandboxInfo, await self._http.json(Call("GET", ("v1", "sandboxes", sandbox_id)), "id"))

    async def sandboxes(
        self,
        *,
        state: str | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> AsyncIterator[SandboxInfo]:
        """See `Client.sandboxes`."""
        query = _filters(state=state, name=name, created_after=created_after, created_before=created_before)
        query += [("label", f"{key}={value}") for key, value in (labels or {}).items()]
        async for item in self._pages(("v1", "sandboxes"), query, d.object_of(SandboxInfo)):
            yield item

    # --- work --------------------------------------------------------------------------------------------------------

    async def run(
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
        """See `Client.run`."""
        body = _bodies.execute(
            code,
            language=language,
            filename=filename,
            timeout=timeout,
            env=env,
            auto_install=auto_install,
            on_output_limit=on_output_limit,
            callback_url=callback_url,
        ) | _bodies.compact(
            packages=_bodies.string_list(packages),
            files=_bodies.input_files(files),
            network=network,
            allow_hosts=_bodies.string_list(allow_hosts),
            secrets=_bodies.secrets(secrets),
            runtime=runtime,
            image=image,
            gpu=_bodies.gpu_request(gpu),
            resources=_bodies.resources(memory_mb, cpus, pids, disk_mb),
            labels=labels,
        )
        job = await self._jobs.perform(
            Call("POST", ("v1", "run"), body=body),
            title="running",
            callbacks=Callbacks(on_stdout, on_stderr, on_result, on_artifact, on_progress, on_clear),
            wait_timeout=wait_timeout,
            key=idempotency_key,
        )
        result: ExecuteResult = job.result
        return result.check() if check else result

    async def batch(self, jobs: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None) -> list[Job | Exception]:
        """See `Client.batch`."""
        call = Call("POST", ("v1", "jobs", "batch"), body={"jobs": list(jobs)}, key=idempotency_key or "")
        answer = await self._http.json(call, "jobs")
        return [
            decode_job(entry["job"])
            if "job" in entry
            else error_from_problem(
                int(entry["error"].get("status") or 0), entry["error"], title="", request_id="", retry_after=0.0
            )
            for entry in answer["jobs"]
        ]

    # --- jobs --------------------------------------------------------------------------------------------------------

    async def job(self, job: Job | str, *, wait: float = 0) -> Job:
        """See `Client.job`."""
        return await self._jobs.with_linked_data(await self._jobs.get(_id(job), wait))

    async def jobs(
        self,
        *,
        sandbox_id: str | None = None,
        state: str | None = None,
        kind: str | None = None,
        outcome: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> AsyncIterator[Job]:
        """See `Client.jobs`."""
        query = _filters(
            sandbox_id=sandbox_id,
            state=state,
            kind=kind,
            outcome=outcome,
            created_after=created_after,
            created_before=created_before,
        )
        async for item in self._pages(("v1", "jobs"), query, decode_job):
            yield item

    async def wait(self, job: Job | str, *, timeout: float | None = None) -> Job:
        """See `Client.wait`."""
        with self._jobs.progress_line(f"waiting for {_id(job)}"):
            return await self._jobs.wait(_id(job), timeout)

    async def cancel(self, job: Job | str) -> Job:
        """See `Client.cancel`."""
        return await self._jobs.cancel(_id(job))

    async def events(self, job: Job | str, *, after: str = "") -> AsyncIterator[Event]:
        """See `Client.events`."""
        async with aclosing(self._jobs.events(_id(job), after)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    # --- artifacts ---------------------------------------------------------------------------------------------------

    async def artifacts(
        self,
        *,
        sandbox_id: str | None = None,
        job: Job | str | None = None,
        name: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> AsyncIterator[Artifact]:
        """See `Client.artifacts`."""
        job_id = _id(job) if job else None
        query = _filters(
            sandbox_id=sandbox_id, job_id=job_id, name=name, created_after=created_after, created_before=created_before
        )
        async for item in self._pages(("v1", "artifacts"), query, d.object_of(Artifact)):
            yield item

    async def artifact(self, artifact: Artifact | str) -> Artifact:
        """See `Client.artifact`."""
        return d.build(Artifact, await self._http.json(Call("GET", ("v1", "artifacts", _id(artifact))), "id"))

    async def artifact_url(self, artifact: Artifact | str) -> str:
        """See `Client.artifact_url`."""
        return await self._http.link(Call("GET", ("v1", "artifacts", _id(artifact))))

    async def read_artifact(self, artifact: Artifact | str) -> bytes:
        """See `Client.read_artifact`."""

        async def open_at(offset: int) -> httpx.Response:
            return await self._open_artifact(artifact, offset)

        return await read_all(self._http.io, open_at)

    async def save_artifact(self, artifact: Artifact | str, path: str | os.PathLike[str] | None = None) -> Path:
        """See `Client.save_artifact`."""
        known = artifact if isinstance(artifact, Artifact) else await self.artifact(artifact)

        async def open_at(offset: int) -> httpx.Response:
            return await self._open_artifact(known, offset)

        with self._jobs.progress_line(f"saving {known.name}") as line:
            return await save(self._http.io, open_at, path, known.name or known.id, line, trusted=False)

    async def delete_artifact(self, artifact: Artifact | str) -> None:
        """See `Client.delete_artifact`."""
        await self._http.answer(Call("DELETE", ("v1", "artifacts", _id(artifact))))

    async def _open_artifact(self, artifact: Artifact | str, offset: int) -> httpx.Response:
        return await self._http.fetch(await self.artifact_url(artifact), offset)

    # --- the farm ----------------------------------------------------------------------------------------------------

    async def images(self) -> list[Image]:
        """See `Client.images`."""
        return await self._list(Image, "images")

    async def languages(self, image: str = "python") -> tuple[str, ...]:
        """See `Client.languages`."""
        return next((offered.languages for offered in await self.images() if offered.name == image), ())

    async def workers(self) -> list[Worker]:
        """See `Client.workers`."""
        return await self._list(Worker, "workers")

    async def queues(self) -> list[Queue]:
        """See `Client.queues`."""
        return await self._list(Queue, "queues")

    async def activity(self) -> list[Minute]:
        """See `Client.activity`."""
        return await self._list(Minute, "activity")

    async def fleet_events(self) -> list[FleetEvent]:
        """See `Client.fleet_events`."""
        return await self._list(FleetEvent, "events")

    async def scale(self) -> list[NodeNeed]:
        """See `Client.scale`."""
        return await self._list(NodeNeed, "scale")

    async def limits(self) -> dict[str, Any]:
        """See `Client.limits`."""
        return await self._http.json(Call("GET", ("v1", "limits")))

    async def usage(self, days: int | None = None) -> dict[str, Any]:
        """See `Client.usage`."""
        query = [("days", str(days))] if days is not None else []
        return await self._http.json(Call("GET", ("v1", "usage"), query=query))

    async def create_key(
        self, tenant: str, *, name: str = "", scopes: Sequence[str] | None = None, expires: int | None = None
    ) -> NewKey:
        """See `Client.create_key`."""
        body = _bodies.compact(tenant=tenant, name=name or None, scopes=_bodies.string_list(scopes), expires_seconds=expires)
        return d.build(NewKey, await self._http.json(Call("POST", ("v1", "keys"), body=body, once=True), "secret"))

    async def keys(self, *, tenant: str | None = None) -> AsyncIterator[Key]:
        """See `Client.keys`."""
        async for item in self._pages(("v1", "keys"), _filters(tenant=tenant), d.object_of(Key)):
            yield item

    async def revoke_key(self, key: Key | str) -> None:
        """See `Client.revoke_key`."""
        await self._http.answer(Call("DELETE", ("v1", "keys", _id(key))))

    async def audit(
        self,
        *,
        tenant: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> AsyncIterator[AuditEntry]:
        """See `Client.audit`."""
        query = _filters(tenant=tenant, created_after=created_after, created_before=created_before)
        async for item in self._pages(("v1", "audit"), query, d.object_of(AuditEntry)):
            yield item

    async def health(self) -> dict[str, Any]:
        """See `Client.health`."""
        return await self._http.json(Call("GET", ("healthz",)))

    async def ready(self) -> dict[str, Any]:
        """See `Client.ready`."""
        return await self._http.json(Call("GET", ("readyz",)))

    async def _list(self, cls: type[T], resource: str) -> list[T]:
        return list(d.tuple_of(cls)((await self._http.json(Call("GET", ("v1", resource)), "items"))["items"]))

    async def _pages(
        self, path: Sequence[str], query: Sequence[tuple[str, str]], convert: Callable[[Any], T]
    ) -> AsyncIterator[T]:
        cursor = ""
        while True:
            request = [("limit", _PAGE_SIZE), *query, *([("cursor", cursor)] if cursor else [])]
            page = await self._http.json(Call("GET", path, query=request), "items")
            for item in page["items"]:
                yield convert(item)
            next_cursor = page.get("next_cursor") or ""
            if next_cursor in {"", cursor}:
                return
            cursor = next_cursor


def _filters(**filters: str | datetime | None) -> list[tuple[str, str]]:
    """The query of a list, without the filters that are None."""
    return [
        (name, value.astimezone(timezone.utc).isoformat() if isinstance(value, datetime) else value)
        for name, value in filters.items()
        if value
    ]


def _id(item: Job | Artifact | Key | str) -> str:
    return item if isinstance(item, str) else item.id
