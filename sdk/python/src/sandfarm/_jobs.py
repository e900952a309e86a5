"""Jobs: start, wait, follow, cancel."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import httpx

from . import _decode as d
from ._http import LONG_POLL, MAX_RECONNECTS, MAX_WAIT, Call, Http, backoff, new_key
from ._progress import ProgressLine
from ._transfer import read_all
from .errors import InternalError, SandfarmError, TooLargeError, UnavailableError, WaitTimeout, error_from_job
from .models import Artifact, Event, Job, Progress
from .results import ExecuteResult, result_of_kind
from .rich import DisplayGroups, Rich, is_text

# Larger displayed values are not downloaded; the caller gets their link.
MAX_DISPLAY_BYTES = 32 << 20


def decode_job(data: Any) -> Job:
    """Decodes a job, with the result class of its kind."""
    job = d.build(Job, data)
    if not job.id:
        raise InternalError("the answer has no job and is not from a Sandfarm: check SANDFARM_URL")
    return job if job.result is None else replace(job, result=result_of_kind(job.kind, job.result))


@dataclass(frozen=True)
class Callbacks:
    """The caller's callbacks for the events of a job. Those of asynchronous callers may be coroutines."""

    stdout: Callable[[str], Any] | None = None
    stderr: Callable[[str], Any] | None = None
    result: Callable[[Rich], Any] | None = None
    artifact: Callable[[Artifact], Any] | None = None
    progress: Callable[[Progress], Any] | None = None
    clear: Callable[[bool], Any] | None = None

    @property
    def any(self) -> bool:
        """Whether there is at least one."""
        return any((self.stdout, self.stderr, self.result, self.artifact, self.progress, self.clear))


class _Caller:
    """Calls callbacks and remembers whether one raised."""

    def __init__(self) -> None:
        self.raised = False

    async def __call__(self, callback: Callable[[Any], Any] | None, value: Any) -> None:
        if callback is None:
            return
        try:
            returned = callback(value)
            if inspect.isawaitable(returned):
                await returned
        except BaseException:
            self.raised = True
            raise


class Jobs:
    """The jobs of one farm."""

    def __init__(self, http: Http, progress: bool | None) -> None:
        self._http = http
        self._io = http.io
        self._progress = progress

    def progress_line(self, title: str, callbacks: Callbacks | None = None) -> ProgressLine:
        """A progress line. It is disabled if there are callbacks, which may write to the terminal themselves."""
        if self._progress is None and callbacks is not None and callbacks.any:
            return ProgressLine(title, enabled=False)
        return ProgressLine(title, enabled=self._progress)

    async def get(self, job_id: str, wait: float = 0) -> Job:
        """Reads a job. With `wait` the farm answers when the job is final, or after so many seconds."""
        return decode_job(await self._http.json(Call("GET", ("v1", "jobs", job_id), wait=wait)))

    async def start(self, call: Call) -> Job:
        """Starts a job and returns it without waiting."""
        return decode_job(await self._http.json(replace(call, retry_seconds=self._http.settings.outage)))

    async def cancel(self, job_id: str) -> Job:
        """Cancels a job."""
        return decode_job(await self._http.json(Call("DELETE", ("v1", "jobs", job_id))))

    async def wait(self, job_id: str, timeout: float | None = None, deadline: float | None = None) -> Job:
        """Waits until a job is final. `deadline` is when `timeout` ends, as a time of `time.monotonic`.

        Raises:
            WaitTimeout: the job is not final after so many seconds.
        """
        if deadline is None and timeout is not None:
            deadline = time.monotonic() + timeout
        attempt, unavailable_since = 0, 0.0
        while True:
            sent = time.monotonic()
            wait = LONG_POLL if deadline is None else max(min(LONG_POLL, deadline - sent), 0)
            try:
                job = await self.get(job_id, wait)
            except UnavailableError:  # the farm may be restarting
                attempt += 1
                unavailable_since = unavailable_since or time.monotonic()
                outage = time.monotonic() - unavailable_since
                give_up = attempt >= MAX_RECONNECTS and outage >= self._http.settings.outage
                if give_up or (deadline is not None and time.monotonic() >= deadline):
                    raise
                await self._io.sleep(backoff(attempt))
                continue
            unavailable_since = 0.0
            if job.final:
                return await self.with_linked_data(job)
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(f"the job {job_id} is still {job.state} after {timeout:g} s", job=job)
            attempt = 0 if time.monotonic() - sent >= min(wait, 1.0) else attempt + 1
            if attempt:  # the farm answered at once instead of holding the request
                await self._io.sleep(backoff(attempt))

    async def with_linked_data(self, job: Job) -> Job:
        """The job with the linked data of its displayed values, up to 32 MiB each."""
        if not isinstance(job.result, ExecuteResult) or not any(r.links for r in job.result.results):
            return job
        results = tuple([await self._download_links(r) for r in job.result.results])
        return replace(job, result=replace(job.result, results=results))

    async def _download_links(self, rich: Rich) -> Rich:
        """A displayed value with its linked data."""
        data, links = dict(rich.data), dict(rich.links)
        for mime, link in rich.links.items():
            try:
                content = await self._download(link)
            except SandfarmError:
                continue  # the caller gets the link
            data[mime] = content.decode("utf-8", "replace") if is_text(mime) else content
            del links[mime]
        return replace(rich, data=data, links=links)

    async def _download(self, link: str) -> bytes:
        async def open_at(offset: int) -> httpx.Response:
            response = await self._http.fetch(link, offset)
            if int(response.headers.get("Content-Length") or 0) > MAX_DISPLAY_BYTES:
                await self._io.release(response)
                raise TooLargeError("the value is too large to be downloaded automatically")
            return response

        return await read_all(self._io, open_at)

    async def events(self, job_id: str, after: str = "") -> AsyncIterator[Event]:
        """The events of a job until its final state."""
        async with aclosing(self._http.events(job_id, after)) as events:  # type: ignore[type-var]
            async for event in events:
                if event is not None:
                    yield event

    async def perform(
        self,
        call: Call,
        *,
        title: str,
        callbacks: Callbacks | None = None,
        wait_timeout: float | None = None,
        key: str | None = None,
    ) -> Job:
        """Starts a job and waits until it completes. A caller that gives up (Ctrl-C, a canceled task) cancels it.

        Raises:
            JobError: the job did not complete.
            WaitTimeout: the job continues after `wait_timeout` seconds.
        """
        call = replace(call, key=key or new_key())
        callbacks = callbacks or Callbacks()
        deadline = None if wait_timeout is None else time.monotonic() + wait_timeout
        job: Job | None = None
        caller = _Caller()
        try:
            with self.progress_line(title, callbacks) as line:
                wait = 0.0 if callbacks.any else 1.0 if line.enabled else float(MAX_WAIT)
                retry_seconds = self._http.settings.outage
                if wait_timeout is not None:
                    wait, retry_seconds = min(wait, wait_timeout), min(retry_seconds, wait_timeout)
                job = self._accepted(await self._http.json(replace(call, wait=wait, retry_seconds=retry_seconds)))
                if callbacks.any or (line.enabled and not job.final):
                    await self._follow(job.id, callbacks, caller, line, deadline, wait_timeout)
                if callbacks.any or not job.final:
                    job = await self.wait(job.id, wait_timeout, deadline)
        except BaseException as error:
            if caller.raised or not isinstance(error, SandfarmError):  # a callback that raised, Ctrl-C, a canceled task
                await self._io.clean_up(self._abandon(call, job))
            raise
        job = await self.with_linked_data(job)
        if job.state != "completed":
            raise error_from_job(job)
        return job

    @staticmethod
    def _accepted(data: Mapping[str, Any]) -> Job:
        """The job in an answer. The answer to a create has the sandbox beside the job."""
        return decode_job(data["job"] if isinstance(data.get("job"), Mapping) else data)

    async def _abandon(self, call: Call, job: Job | None) -> None:
        """Cancels a job. If its id is not known yet, sending the request again with the same key returns it."""
        if job is None:
            job = self._accepted(await self._http.json(replace(call, wait=0)))
        if call.path[-1] == "sandboxes":  # a create: close the sandbox
            await self._http.json(Call("DELETE", ("v1", "sandboxes", job.sandbox_id)))
        else:
            await self.cancel(job.id)

    async def _follow(
        self,
        job_id: str,
        callbacks: Callbacks,
        call: _Caller,
        line: ProgressLine,
        deadline: float | None,
        timeout: float | None,
    ) -> None:
        groups = DisplayGroups(job_id)
        async with aclosing(self._http.events(job_id, deadline=deadline)) as events:  # type: ignore[type-var]
            async for event in events:
                if callbacks.result is not None:
                    for rich in _complete(groups, event):
                        await call(callbacks.result, await self._download_links(rich))
                if event is None:
                    if deadline is not None and time.monotonic() >= deadline:
                        raise WaitTimeout(f"the job {job_id} is not done after {timeout:g} s", job=await self.get(job_id))
                    continue
                if event.name == "stdout":
                    await call(callbacks.stdout, event.text)
                elif event.name == "stderr":
                    await call(callbacks.stderr, event.text)
                elif event.name == "clear":
                    await call(callbacks.clear, bool(event.data.get("wait")))
                elif event.name == "artifact":
                    await call(callbacks.artifact, d.build(Artifact, event.data))
                elif event.name == "progress":
                    progress = d.build(Progress, event.data)
                    line.update(progress)
                    await call(callbacks.progress, progress)
                elif event.name == "state":
                    line.update(Progress(str(event.data.get("state") or "")))


def _complete(groups: DisplayGroups, event: Event | None) -> list[Rich]:
    """Adds an event of the stream and returns the values that are complete with it."""
    if event is None or event.name != "display":
        return groups.end()
    complete = groups.add(event.data)
    return complete + groups.end() if event.data.get("mime") == "text/plain" else complete
