"""HTTP to one farm: requests, retries, problems, events, links."""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx

from ._io import IO, Chunks
from ._sse import frames
from ._version import VERSION
from .errors import InternalError, InvalidError, SandfarmError, UnavailableError, error_from_problem
from .models import Event

DEFAULT_URL = "http://127.0.0.1:8000"

MAX_WAIT = 60  # seconds that the farm holds a request at most
LONG_POLL = 30  # seconds; below the idle timeouts of common proxies
SILENCE_TIMEOUT = 60.0  # seconds; the farm sends a heartbeat every 15
MAX_RECONNECTS = 8  # in a row, without any data in between
MAX_PROBLEM_BYTES = 64 << 10


def address(url: str | None, default: str = DEFAULT_URL) -> str:
    """The base URL of a farm, without `/v1`: the given one, that of `SANDFARM_URL`, or the default.

    Raises:
        InvalidError: it is not an address.
    """
    url = (url or os.environ.get("SANDFARM_URL") or default).strip().rstrip("/").removesuffix("/v1").rstrip("/")
    parts = urlsplit(url)
    try:
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # the port is not a number
        valid = False
    if not valid:
        raise InvalidError(f"the farm's address {url!r} must look like http://host:port")
    if parts.query or parts.fragment or parts.username:
        raise InvalidError("the farm's address must not have a query, a fragment or a user")
    return url


def read_key(path: str) -> str:
    """The API key in a file, which other users must not be able to read.

    Raises:
        ValueError: they can.
    """
    file = Path(path)
    if os.name == "posix" and (mode := file.stat().st_mode & 0o777) & 0o077:
        raise ValueError(
            f"the key file {path} can be used by other users of this machine (mode {mode:04o}): run chmod 600 on it"
        )
    return file.read_text().strip()


def api_key(key: str | None) -> str:
    """The API key: the given one, that of `SANDFARM_API_KEY`, or the one in the file `SANDFARM_API_KEY_FILE`.

    White space around it is removed.

    Raises:
        OSError: the file cannot be read.
        ValueError: other users can read the file, or the key cannot be sent in a header. The message does not contain the key.
    """
    if key is None:
        key, file = os.environ.get("SANDFARM_API_KEY", ""), os.environ.get("SANDFARM_API_KEY_FILE")
        if not key and file:
            key = read_key(file)
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError("the API key (SANDFARM_API_KEY, or api_key) must be one line of printable ASCII")
    return key


@dataclass(frozen=True)
class Settings:
    """How to reach a farm. See the arguments of `Client`."""

    url: str
    key: str
    timeout: float
    retries: int
    max_pause: float
    outage: float

    @staticmethod
    def make(url: str | None, key: str | None, timeout: float, retries: int, max_pause: float, outage: float = 0.0) -> Settings:
        """Fills in missing values from the environment.

        Raises:
            InvalidError: the address is not valid.
            ValueError: the key cannot be sent.
        """
        return Settings(address(url), api_key(key), timeout, max(retries, 0), max_pause, outage)


@dataclass(frozen=True)
class Call:
    """One request to the farm.

    Attributes:
        method: HTTP method.
        path: path elements, not escaped.
        query: pairs; a name may occur more than once.
        headers: additional headers.
        body: sent as JSON.
        content: sent as it is; produced again for each retry.
        length: bytes of the content, if known.
        wait: seconds that the farm may hold the request; negative: the default of the route.
        key: Idempotency-Key of a POST.
        read_timeout: seconds without data after which the answer counts as lost; 0: the client's timeout plus `wait`.
        once: a POST or PUT that is not repeated once it may have reached the farm, which knows no key for it.
        retry_seconds: for how long the request is retried at least, once it may have reached the farm.
    """

    method: str
    path: Sequence[str]
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] | None = None
    body: Any = None
    content: bytes | Chunks | None = None
    length: int | None = None
    wait: float = 0
    key: str = ""
    read_timeout: float = 0
    once: bool = False
    retry_seconds: float = 0

    @property
    def idempotent(self) -> bool:
        """Whether it may be sent again although it may have arrived."""
        return (self.method in {"GET", "HEAD", "PUT"} and not self.once) or bool(self.key)


def new_key() -> str:
    """Makes a new Idempotency-Key."""
    return uuid.uuid4().hex


def backoff(attempt: int) -> float:
    """Seconds to wait before a retry: 0.1 to 2, with jitter so that clients do not retry in step."""
    full: float = min(0.1 * 2.0 ** min(attempt - 1, 10), 2.0)
    return full / 2 + random.random() * full / 2  # noqa: S311 # not a secret


class Http:
    """The HTTP client of one farm."""

    def __init__(self, settings: Settings, io: IO) -> None:
        self.settings = settings
        self.io = io

    async def json(self, call: Call, required: str = "") -> dict[str, Any]:
        """Makes a request and returns the JSON object of the answer, which must have the `required` field.

        Raises:
            SandfarmError: of the class for the error code; `InternalError` if the answer does not come from a Sandfarm.
        """
        response, data = await self.answer(call)
        if not isinstance(data, dict) or (required and not data.get(required) and data.get(required) != []):
            raise self._not_sandfarm(call, response)
        return data

    async def link(self, call: Call) -> str:
        """Makes a request and returns the URL that it redirects to."""
        response, _ = await self._send_with_retries(call, read=True)
        if not (response.is_redirect and response.headers.get("Location")):
            raise self._not_sandfarm(call, response)
        return str(response.headers["Location"])

    def _not_sandfarm(self, call: Call, response: httpx.Response) -> InternalError:
        """The error for an answer that does not come from a Sandfarm."""
        target = response.headers.get("Location", "").partition("?")[0]  # the query may have a signature
        what = f"redirects to {target}" if response.is_redirect else f"is not from a Sandfarm (HTTP {response.status_code})"
        return InternalError(f"the answer to {call.method} {what}: check the address {self.settings.url}", status=0)

    async def answer(self, call: Call) -> tuple[httpx.Response, Any]:
        """Makes a request and returns the response and its JSON; None if the body is empty."""
        response, content = await self._send_with_retries(call, read=True)
        if not content:
            if response.is_redirect:
                raise self._not_sandfarm(call, response)
            return response, None
        try:
            return response, json.loads(content)
        except ValueError:
            raise self._not_sandfarm(call, response) from None

    async def open(self, call: Call) -> httpx.Response:
        """Makes a request and returns the response with its body unread. The caller must release it."""
        response = (await self._send_with_retries(call, read=False))[0]
        if response.is_redirect:
            await self.io.release(response)
            raise self._not_sandfarm(call, response)
        return response

    async def _send_with_retries(self, call: Call, *, read: bool) -> tuple[httpx.Response, bytes]:
        if call.method == "POST" and not call.key and not call.once:
            call = replace(call, key=new_key())
        attempt, retry_until = 1, 0.0
        while True:
            try:
                return await self._send_once(call, read=read)
            except httpx.TransportError as error:
                failure: SandfarmError = self._unreachable(error)
                sent = not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
                if sent and not retry_until:
                    retry_until = time.monotonic() + call.retry_seconds
                retry = not isinstance(error, httpx.ReadTimeout) and (call.idempotent or not sent)
            except SandfarmError as error:
                failure = error
                refused = error.status == 429 or (error.status in {502, 503, 504} and call.idempotent)
                too_small = error.status == 429 and "quota" in error.details and not error.retry_after  # no retry can succeed
                retry = refused and not too_small and error.retry_after <= self.settings.max_pause
            more_time = self.settings.retries > 0 and time.monotonic() < retry_until
            if not retry or (attempt > self.settings.retries and not more_time):
                raise failure  # its message has what the cause says
            await self.io.sleep(max(backoff(attempt), failure.retry_after))
            attempt += 1

    async def _send_once(self, call: Call, *, read: bool) -> tuple[httpx.Response, bytes]:
        response = await self.io.send(self._request(call))
        done = False
        try:
            if response.status_code >= 400:
                error = await self._problem(response)
                if not (error.details or error.request_id):  # a farm sends both
                    error.message = f"{error.message}. The answer is not from a Sandfarm: check the address {self.settings.url}"
                raise error
            content = await self.io.body(response) if read else b""
            done = not read
        except httpx.DecodingError:
            raise self._not_sandfarm(call, response) from None
        finally:
            if not done:
                await self.io.release(response)
        return response, content

    def _request(self, call: Call) -> httpx.Request:
        headers = {"Accept": "application/json", "User-Agent": f"sandfarm-python/{VERSION}"}
        content = call.content
        if any(part in {"", ".", ".."} for part in call.path[:-1]) or call.path[-1] in {".", ".."}:
            raise InvalidError(f"{'/'.join(call.path)} is not a valid path: an id or a name in it is empty or consists of dots")
        if call.body is not None:
            content = _encode(call.body)
            headers["Content-Type"] = "application/json"
        if call.length is not None:
            headers["Content-Length"] = str(call.length)
        if call.key:
            headers["Idempotency-Key"] = call.key
        if self.settings.key:
            headers["Authorization"] = f"Bearer {self.settings.key}"
        headers.update(call.headers or {})
        wait = MAX_WAIT if call.wait < 0 else call.wait
        timeout = httpx.Timeout(self.settings.timeout, read=call.read_timeout or self.settings.timeout + wait, pool=None)
        query = list(call.query)
        if call.wait > 0:
            query.append(("wait", f"{min(call.wait, MAX_WAIT):g}"))
        url = self.settings.url + "".join("/" + quote(part, safe="") for part in call.path)
        return self.io.request(
            call.method, url + ("?" + urlencode(query) if query else ""), headers=headers, content=content, timeout=timeout
        )

    def _unreachable(self, error: httpx.TransportError) -> UnavailableError:
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return UnavailableError(
                f"no farm answers at {self.settings.url}: check that it runs and that SANDFARM_URL is right ({_text(error)})"
            )
        if isinstance(error, httpx.TimeoutException):
            return UnavailableError(f"the farm at {self.settings.url} did not answer in time")
        return UnavailableError(f"the connection to the farm at {self.settings.url} broke: {_text(error)}")

    async def _problem(self, response: httpx.Response) -> SandfarmError:
        content = b""
        try:
            async with aclosing(self.io.chunks(response)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    content += chunk
                    if len(content) > MAX_PROBLEM_BYTES:  # an error page of a proxy may have any size
                        break
            problem = json.loads(content)
        except (httpx.TransportError, ValueError):
            problem = {}
        return error_from_problem(
            response.status_code,
            problem if isinstance(problem, dict) else {},
            title=response.reason_phrase,
            request_id=response.headers.get("X-Request-Id", ""),
            retry_after=_retry_after(response.headers.get("Retry-After", "")),
        )

    async def events(self, job_id: str, after: str = "", deadline: float | None = None) -> AsyncIterator[Event | None]:
        """The events of a job, from the first or behind `after`, until its final state; None for heartbeats.

        `deadline` is that of `stream`.
        """
        call = Call("GET", ("v1", "jobs", job_id, "events"))
        async with aclosing(self.stream(call, f"the event stream of job {job_id}", after, deadline)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event
                if event is not None and event.final:
                    return

    async def stream(
        self, call: Call, what: str, after: str = "", deadline: float | None = None
    ) -> AsyncIterator[Event | None]:
        """Server-sent events, from the first or behind `after`, without end; None for heartbeats.

        When the connection breaks, the stream resumes behind the last event. `deadline` is a time of `time.monotonic`:
        after it None is yielded at least once.
        """
        attempt, broken_since = 0, 0.0
        while True:
            cause: Exception | None = None
            try:
                async with aclosing(self._stream(call, what, after, deadline)) as stream:  # type: ignore[type-var]
                    async for event in stream:
                        if event is not None:
                            attempt, after = 0, event.id
                        yield event
            except (httpx.TransportError, UnavailableError) as error:
                cause = error
            if deadline is not None and time.monotonic() >= deadline:
                yield None
            attempt += 1
            broken_since = time.monotonic() if attempt == 1 else broken_since
            if attempt >= MAX_RECONNECTS and (cause is None or time.monotonic() - broken_since >= self.settings.outage):
                why = cause or "the stream ended"
                raise UnavailableError(f"{what} broke {attempt} times in a row: {why}") from cause
            await self.io.sleep(backoff(attempt))

    async def _stream(self, call: Call, what: str, after: str, deadline: float | None) -> AsyncIterator[Event | None]:
        headers = {"Accept": "text/event-stream"}
        if after:
            headers["Last-Event-ID"] = after
        left = SILENCE_TIMEOUT if deadline is None else min(SILENCE_TIMEOUT, max(deadline - time.monotonic(), 0.1))
        call = replace(call, headers=headers, read_timeout=left)
        response = await self.open(call)
        try:
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise self._not_sandfarm(call, response)
            async with aclosing(self.io.chunks(response)) as chunks, aclosing(frames(chunks, after)) as found:  # type: ignore[type-var]
                async for frame in found:
                    if frame is None:
                        yield None
                        continue
                    try:
                        data = json.loads(frame.data)
                    except ValueError:
                        raise InternalError(f"{what} sent an event that is not valid JSON") from None
                    yield Event(frame.id, frame.name, data if isinstance(data, dict) else {})
        finally:
            await self.io.release(response)

    async def fetch(self, link: str, offset: int = 0) -> httpx.Response:
        """Opens a presigned link at a byte offset. No credentials are sent, and no error message contains the link.

        Raises:
            SandfarmError: the link has expired, or the object store cannot be reached.
        """
        headers = {"Accept-Encoding": "identity", "User-Agent": f"sandfarm-python/{VERSION}"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        timeout = httpx.Timeout(self.settings.timeout, read=SILENCE_TIMEOUT, pool=None)
        attempt = 1
        while True:
            try:
                response = await self.io.send(self.io.request("GET", link, headers=headers, content=None, timeout=timeout))
            except httpx.TransportError:
                if attempt > self.settings.retries:
                    raise UnavailableError("the object store that the link points to cannot be reached") from None
                await self.io.sleep(backoff(attempt))
                attempt += 1
                continue
            if response.status_code < 400:
                return response
            error = await self._problem(response)
            await self.io.release(response)
            if error.status not in {429, 502, 503, 504} or attempt > self.settings.retries:
                raise error
            await self.io.sleep(max(backoff(attempt), min(error.retry_after, self.settings.max_pause)))
            attempt += 1


def _encode(body: Any) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"the request has text that is not valid Unicode: {error}") from None


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _retry_after(value: str) -> float:
    """The header Retry-After in either form, in seconds; 0 if there is none."""
    if value.isdigit():
        return float(min(int(value), 24 * 3600))
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return 0.0
