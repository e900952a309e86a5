"""Processes beside the jobs of one sandbox, for asyncio."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing

from . import _bodies
from . import _decode as d
from ._handle import Handle
from ._http import Call
from .live import Output, ProcessInfo, RunningProcess, output_of

# A login shell: bash where the image has it.
LOGIN_SHELL = "if command -v bash >/dev/null; then exec bash -l; fi; exec sh -l"


class AsyncProcess:
    """One process. Every method is the awaitable form of the one in `Process`.

    Attributes:
        info: what was last known of it.
    """

    def __init__(self, handle: Handle, info: ProcessInfo) -> None:
        self._handle = handle
        self.info = info

    @property
    def id(self) -> str:
        """Its id, such as `prc_…`."""
        return self.info.id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id} {self.info.state})"

    async def refresh(self) -> ProcessInfo:
        """See `Process.refresh`."""
        return await self._info(Call("GET", await self._path()))

    async def output(self, *, after: str = "") -> AsyncIterator[Output]:
        """See `Process.output`."""
        call = Call("GET", await self._path("events"))
        async with aclosing(self._handle.http.stream(call, f"the output of {self.id}", after)) as events:  # type: ignore[type-var]
            async for event in events:
                if event is None:
                    continue
                if event.name == "exit":
                    await self.refresh()
                    return
                yield output_of(event.name, event.id, event.data)

    async def wait(self) -> ProcessInfo:
        """See `Process.wait`."""
        async for _ in self.output():
            pass
        return self.info

    async def write(self, data: str | bytes, *, close: bool = False) -> int:
        """See `Process.write`."""
        raw = data.encode() if isinstance(data, str) else bytes(data)
        headers = {"Content-Type": "application/octet-stream"}
        query = [("close", "true")] if close else []
        call = Call("POST", await self._path("stdin"), query=query, headers=headers, content=raw, length=len(raw), once=True)
        return int((await self._handle.http.json(call, "written"))["written"])

    async def signal(self, name: str) -> ProcessInfo:
        """See `Process.signal`."""
        return await self._info(Call("POST", await self._path("signal"), body={"signal": name}))

    async def resize(self, cols: int, rows: int) -> ProcessInfo:
        """See `Process.resize`."""
        return await self._info(Call("POST", await self._path("resize"), body={"cols": cols, "rows": rows}))

    async def end(self) -> ProcessInfo:
        """See `Process.end`."""
        return await self._info(Call("DELETE", await self._path()))

    async def _path(self, *rest: str) -> tuple[str, ...]:
        return await self._handle.path("processes", self.id, *rest)

    async def _info(self, call: Call) -> ProcessInfo:
        self.info = d.build(ProcessInfo, await self._handle.http.json(call, "id"))
        return self.info


class AsyncProcesses:
    """The processes of one sandbox. Every method is the awaitable form of the one in `Processes`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def start(
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
    ) -> AsyncProcess:
        """See `Processes.start`."""
        body = _bodies.compact(
            command=command if isinstance(command, str) else None,
            argv=None if isinstance(command, str) else list(command),
            name=name,
            cwd=cwd,
            env=env,
            stdin=stdin or None,
            pty=None if pty is None else {"cols": pty[0], "rows": pty[1]},
            timeout_seconds=timeout,
            hangup_seconds=hangup,
            restart=restart,
        )
        made = await self._handle.http.json(Call("POST", await self._handle.path("processes"), body=body), "id")
        return AsyncProcess(self._handle, d.build(ProcessInfo, made))

    async def list(self) -> builtins.list[ProcessInfo]:
        """See `Processes.list`."""
        found = await self._handle.http.json(Call("GET", await self._handle.path("processes")), "items")
        return builtins.list(d.tuple_of(ProcessInfo)(found["items"]))

    async def running(self) -> builtins.list[RunningProcess]:
        """See `Processes.running`."""
        call = Call("GET", await self._handle.path("processes"), query=[("all", "true")])
        return builtins.list(d.tuple_of(RunningProcess)((await self._handle.http.json(call, "items")).get("running")))

    async def get(self, process_id: str) -> AsyncProcess:
        """See `Processes.get`."""
        found = await self._handle.http.json(Call("GET", await self._handle.path("processes", process_id)), "id")
        return AsyncProcess(self._handle, d.build(ProcessInfo, found))
