"""Runs code and commands in one sandbox, for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _bodies
from ._handle import Handle
from ._http import Call
from ._jobs import Callbacks
from .models import Artifact, Job, Progress
from .results import CommandResult, ExecuteResult
from .rich import Rich


class AsyncRunner:
    """Base class of `AsyncSandbox`: the methods that run code and commands."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    # --- code --------------------------------------------------------------------------------------------------------

    async def run(
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
        """See `Sandbox.run`."""
        body = _bodies.execute(
            code,
            language=language,
            filename=filename,
            context=context,
            timeout=timeout,
            env=env,
            auto_install=auto_install,
            on_output_limit=on_output_limit,
            callback_url=None,
        )
        job = await self._handle.jobs.perform(
            Call("POST", await self._handle.path("execute"), body=body),
            title="running",
            callbacks=Callbacks(on_stdout, on_stderr, on_result, on_artifact, on_progress, on_clear),
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
        filename: str | None = None,
        context: str | None = None,
        timeout: int | None = None,
        env: Mapping[str, str] | None = None,
        auto_install: bool = False,
        on_output_limit: str | None = None,
        callback_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """See `Sandbox.submit`."""
        body = _bodies.execute(
            code,
            language=language,
            filename=filename,
            context=context,
            timeout=timeout,
            env=env,
            auto_install=auto_install,
            on_output_limit=on_output_limit,
            callback_url=callback_url,
        )
        return await self._handle.jobs.start(
            Call("POST", await self._handle.path("execute"), body=body, key=idempotency_key or "")
        )

    async def languages(self) -> tuple[str, ...]:
        """See `Sandbox.languages`."""
        info = await self._handle.farm.info(await self._handle.last_id())
        return await self._handle.farm.languages(info.image)

    async def interrupt(self, context: str | None = None) -> Job:
        """See `Sandbox.interrupt`."""
        return await self._control("interrupt", context)

    async def restart(self, context: str | None = None) -> Job:
        """See `Sandbox.restart`."""
        return await self._control("restart", context)

    async def hibernate(self) -> Job:
        """See `Sandbox.hibernate`."""
        return await self._control("hibernate", None)

    async def resume(self) -> Job:
        """See `Sandbox.resume`."""
        return await self._control("resume", None)

    # --- commands ----------------------------------------------------------------------------------------------------

    async def bash(
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
        """See `Sandbox.bash`."""
        body = _bodies.command(
            command,
            cwd=cwd,
            env=env,
            timeout=timeout,
            auto_install=auto_install,
            on_output_limit=on_output_limit,
            continue_on_error=continue_on_error,
            background=False,
            callback_url=None,
        )
        job = await self._handle.jobs.perform(
            Call("POST", await self._handle.path("commands"), body=body),
            title="running a command",
            callbacks=Callbacks(on_stdout, on_stderr, artifact=on_artifact, progress=on_progress),
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
        auto_install: bool = False,
        on_output_limit: str | None = None,
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
            auto_install=auto_install,
            on_output_limit=on_output_limit,
            continue_on_error=continue_on_error,
            background=background,
            callback_url=callback_url,
        )
        return await self._handle.jobs.start(
            Call("POST", await self._handle.path("commands"), body=body, key=idempotency_key or "")
        )

    async def _control(self, verb: str, context: str | None) -> Job:
        body = {"context": context} if context else None
        return await self._handle.jobs.perform(Call("POST", await self._handle.path(verb), body=body), title=verb)
