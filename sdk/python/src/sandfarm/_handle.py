"""The handle of one sandbox: its id, and the farm that it belongs to."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ._http import Call, Http
from ._jobs import Jobs
from .aio_farm import AsyncFarm
from .errors import ConflictError, NotFoundError
from .results import InstallResult


class Handle:
    """One sandbox, which is created when its id is first needed.

    Attributes:
        farm: the farm it belongs to.
        known_id: its id; empty until it is created.
    """

    def __init__(self, farm: AsyncFarm, known_id: str, body: dict[str, Any]) -> None:
        self.farm = farm
        self.known_id = known_id
        self._body = body
        self._lock = farm._http.io.lock()
        self._closing = False
        self._closed = False

    @property
    def http(self) -> Http:
        """The HTTP client of the farm."""
        return self.farm._http

    @property
    def jobs(self) -> Jobs:
        """The jobs of the farm."""
        return self.farm._jobs

    async def id(self) -> str:
        """Its id. Creates the sandbox if it does not exist yet."""
        async with self._lock:
            if self._closing:
                which = f"the sandbox {self.known_id}" if self.known_id else "this sandbox"
                raise ConflictError(f"{which} is closed: create a new one", code="conflict")
            if self.known_id:
                return self.known_id
            job = await self.jobs.perform(Call("POST", ("v1", "sandboxes"), body=self._body), title="creating a sandbox")
            if isinstance(job.result, InstallResult) and not job.result.ok:
                await self.http.io.clean_up(self.http.json(Call("DELETE", ("v1", "sandboxes", job.sandbox_id))))
                job.result.check()
            self.known_id = job.sandbox_id
            return self.known_id

    async def last_id(self) -> str:
        """Its id, also if it is closed."""
        return self.known_id or await self.id()

    async def path(self, *rest: str) -> tuple[str, ...]:
        """The path of the sandbox, or of something below it."""
        return ("v1", "sandboxes", await self.id(), *rest)

    async def close(self) -> None:
        """Closes the sandbox, if it was created. It may be called again if it failed."""
        async with self._lock:
            self._closing = True
            if self.known_id and not self._closed:
                with suppress(ConflictError, NotFoundError):  # it is closed already
                    await self.http.json(Call("DELETE", ("v1", "sandboxes", self.known_id), wait=30))
            self._closed = True
