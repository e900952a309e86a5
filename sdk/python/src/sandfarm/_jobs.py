"""Jobs: starting, waiting, following, giving up."""

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
from ._progress import Line
from ._transfer import whole
from .errors import InternalError, SandfarmError, TooLargeError, UnavailableError, WaitTimeout, of_job
from .models import Artifact, Event, Job, Progress
from .results import ExecuteResult, of_kind
from .rich import Rich, is_text, value_of

# A displayed value that is larger stays behind its link.
MAX_FETCHED = 32 << 20


def job_of(data: Any) -> Job:
    """Reads a job, with the result of its kind."""
    job = d.build(Job, data)
    if not job.id:
        raise InternalError("the answer is no Sandfarm's: it has no job. Is SANDFARM_URL right?")
    return job if job.result is None else replace(job, result=of_kind(job.kind, job.result))


@dataclass(frozen=True)
class Watch:
    """Who wants to know what happens in a job while it happens. Callbacks of asynchronous callers may be coroutines."""

    stdout: Callable[[str], Any] | None = None
    stderr: Callable[[str], Any] | None = None
    result: Callable[[Rich], Any] | None = None
    artifact: Callable[[Artifact], Any] | None = None
    progress: Callable[[Progress], Any] | None = None

    @property
    def any(self) -> bool:
        """Whether anybody does."""
        return any((self.stdout, self.stderr, self.result, self.artifact, self.progress))


class _Teller:
    """Calls callbacks, and remembers whether one raised."""

    def __init__(self) -> None:
        self.raised = False

    async def __call__(self, callback: Callable[[Any], Any] | None, value: Any) -> None:
        if callback is None:
            return
        try:
            said = callback(value)
            if inspect.isawaitable(said):
                await said
        except BaseException:
            self.raised = True
            raise


class Jobs:
    """The jobs of one farm."""

    def __init__(self, http: Http, progress: bool | None) -> None:
        self._http = http
        self._io = http.io
        self._progress = progress

    def line(self, title: str, watch: Watch | None = None) -> Line:
        """A line of progress, unless there are callbacks: they may write to the terminal themselves."""
        if self._progress is None and watch is not None and watch.any:
            return Line(title, enabled=False)
        return Line(title, enabled=self._progress)

    async def get(self, job_id: str, wait: float = 0) -> Job:
        """Reads a job; with `wait` once it is final, or after so many seconds."""
        return job_of(await self._http.json(Call("GET", ("v1", "jobs", job_id), wait=wait)))

    async def start(self, call: Call) -> Job:
        """Starts a job and gives it at once."""
        return job_of(await self._http.json(replace(call, patience=self._http.settings.outage)))

    async def cancel(self, job_id: str) -> Job:
        """Ends a job."""
        return job_of(await self._http.json(Call("DELETE", ("v1", "jobs", job_id))))

    async def wait(self, job_id: str, timeout: float | None = None, end: float | None = None) -> Job:
        """The job once it is final, however it ended. `end`, of `time.monotonic`, is when `timeout` is over.

        Raises:
            WaitTimeout: it is not, after so many seconds.
        """
        if end is None and timeout is not None:
            end = time.monotonic() + timeout
        attempt, since = 0, 0.0
        while True:
            asked = time.monotonic()
            left = LONG_POLL if end is None else max(min(LONG_POLL, end - asked), 0)
            try:
                job = await self.get(job_id, left)
            except UnavailableError:  # it may be starting again
                attempt += 1
                since = since or time.monotonic()
                tired = attempt >= MAX_RECONNECTS and time.monotonic() - since >= self._http.settings.outage
                if tired or (end is not None and time.monotonic() >= end):
                    raise
                await self._io.sleep(backoff(attempt))
                continue
            since = 0.0
            if job.final:
                return await self.whole(job)
            if end is not None and time.monotonic() >= end:
                raise WaitTimeout(f"the job {job_id} is still {job.state} after {timeout:g} seconds", job=job)
            attempt = 0 if time.monotonic() - asked >= min(left, 1.0) else attempt + 1
            if attempt:  # the farm did not hold the answer
                await self._io.sleep(backoff(attempt))

    async def whole(self, job: Job) -> Job:
        """The job with what its result has behind links, up to 32 MiB each."""
        if not isinstance(job.result, ExecuteResult) or not any(r.links for r in job.result.results):
            return job
        results = tuple([await self.filled(r) for r in job.result.results])
        return replace(job, result=replace(job.result, results=results))

    async def filled(self, rich: Rich) -> Rich:
        """A displayed value with what it has behind links."""
        data, links = dict(rich.data), dict(rich.links)
        for mime, link in rich.links.items():
            try:
                content = await self._fetch(link)
            except SandfarmError:
                continue  # the link is there for whoever wants to try again
            data[mime] = content.decode("utf-8", "replace") if is_text(mime) else content
            del links[mime]
        return Rich(data, links)

    async def _fetch(self, link: str) -> bytes:
        async def open_at(offset: int) -> httpx.Response:
            response = await self._http.fetch(link, offset)
            if int(response.headers.get("Content-Length") or 0) > MAX_FETCHED:
                await self._io.release(response)
                raise TooLargeError("it stays behind its link")
            return response

        return await whole(self._io, open_at)

    async def events(self, job_id: str, after: str = "") -> AsyncIterator[Event]:
        """The events of a job until its final state."""
        async with aclosing(self._http.events(job_id, after)) as events:  # type: ignore[type-var]
            async for event in events:
                if event is not None:
                    yield event

    async def perform(
        self, call: Call, *, title: str, watch: Watch | None = None, wait_timeout: float | None = None, key: str | None = None
    ) -> Job:
        """Starts a job, waits until it has completed, and gives it. Whoever gives up (Ctrl-C, a cancelled task) cancels it.

        Raises:
            JobError: it ended otherwise.
            WaitTimeout: it goes on after `wait_timeout` seconds.
        """
        call = replace(call, key=key or new_key())
        watch = watch or Watch()
        end = None if wait_timeout is None else time.monotonic() + wait_timeout
        job: Job | None = None
        tell = _Teller()
        try:
            with self.line(title, watch) as line:
                hold = 0.0 if watch.any else 1.0 if line.enabled else float(MAX_WAIT)
                hold = hold if wait_timeout is None else min(hold, wait_timeout)
                outage = self._http.settings.outage
                patience = outage if wait_timeout is None else min(outage, wait_timeout)
                job = self._created(await self._http.json(replace(call, wait=hold, patience=patience)))
                if watch.any or (line.enabled and not job.final):
                    await self._follow(job.id, watch, tell, line, end, wait_timeout)
                if watch.any or not job.final:
                    job = await self.wait(job.id, wait_timeout, end)
        except BaseException as error:
            if tell.raised or not isinstance(error, SandfarmError):  # a callback that raised, Ctrl-C, a cancelled task
                await self._io.settle(self._abandon(call, job))
            raise
        if job.state != "completed":
            raise of_job(await self.whole(job))
        return await self.whole(job)

    @staticmethod
    def _created(data: Mapping[str, Any]) -> Job:
        """The job of an answer; that to a create has the sandbox beside it."""
        return job_of(data["job"] if isinstance(data.get("job"), Mapping) else data)

    async def _abandon(self, call: Call, job: Job | None) -> None:
        """Cancels a job whose id may not be known yet: the same key gives the same job."""
        if job is None:
            job = self._created(await self._http.json(replace(call, wait=0)))
        if call.path[-1] == "sandboxes":  # a create: what it made has to go
            await self._http.json(Call("DELETE", ("v1", "sandboxes", job.sandbox_id)))
        else:
            await self.cancel(job.id)

    async def _follow(
        self, job_id: str, watch: Watch, tell: _Teller, line: Line, end: float | None, timeout: float | None
    ) -> None:
        shown = _Bundle()
        async with aclosing(self._http.events(job_id, deadline=end)) as events:  # type: ignore[type-var]
            async for event in events:
                if watch.result is not None:
                    for rich in shown.feed(event):
                        await tell(watch.result, await self.filled(rich))
                if event is None:
                    if end is not None and time.monotonic() >= end:
                        raise WaitTimeout(f"the job {job_id} is not done after {timeout:g} seconds", job=await self.get(job_id))
                    continue
                if event.name == "stdout":
                    await tell(watch.stdout, event.text)
                elif event.name == "stderr":
                    await tell(watch.stderr, event.text)
                elif event.name == "artifact":
                    await tell(watch.artifact, d.build(Artifact, event.data))
                elif event.name == "progress":
                    progress = d.build(Progress, event.data)
                    line.update(progress)
                    await tell(watch.progress, progress)
                elif event.name == "state":
                    line.update(Progress(str(event.data.get("state") or "")))


class _Bundle:
    """Puts the formats of one displayed value together. They come one by one; plain text is the last."""

    def __init__(self) -> None:
        self._data: dict[str, str | bytes] = {}
        self._links: dict[str, str] = {}
        self._last = ""

    def feed(self, event: Event | None) -> list[Rich]:
        """Takes the next event and gives the values that are whole with it."""
        if event is None or event.name != "display":
            return self._end()
        mime = str(event.data.get("mime") or "")
        out = self._end() if self._last and mime <= self._last else []
        self._last = mime
        if event.data.get("data") is not None:
            self._data[mime] = value_of(mime, str(event.data["data"]))
        elif event.data.get("url"):
            self._links[mime] = str(event.data["url"])
        return out + self._end() if mime == "text/plain" else out

    def _end(self) -> list[Rich]:
        if not self._last:
            return []
        out = Rich(self._data, self._links)
        self._data, self._links, self._last = {}, {}, ""
        return [out]
