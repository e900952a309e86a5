"""One farm over HTTP: requests, their repetition, problems, events, links."""

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
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx

from ._io import IO, Chunks
from ._sse import frames
from ._version import VERSION
from .errors import InternalError, InvalidError, SandfarmError, UnavailableError, of_problem
from .models import Event

DEFAULT_URL = "http://127.0.0.1:8000"

MAX_WAIT = 60  # seconds, of the contract
LONG_POLL = 30  # below the idle limits of common proxies
SILENCE = 60.0  # the farm sends a heartbeat every 15 seconds; after this much nothing is there
MAX_RECONNECTS = 8  # in a row, without an event between them
MAX_PROBLEM = 64 << 10


def address(url: str | None, default: str = DEFAULT_URL) -> str:
    """A farm's address, or that of the environment, as it goes before `/v1`: with that or without it in the end.

    Raises:
        ValueError: it is none.
    """
    url = (url or os.environ.get("SANDFARM_URL") or default).strip().rstrip("/").removesuffix("/v1").rstrip("/")
    parts = urlsplit(url)
    try:
        named = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number
        named = False
    if not named:
        raise ValueError(f"the farm's address {url!r} is not like http://host:port")
    if parts.query or parts.fragment or parts.username:
        raise ValueError("the farm's address must hold no query, fragment or user")
    return url


def api_key(key: str | None) -> str:
    """An API key, or that of the environment, without the space and the line's end that copying leaves around it.

    Raises:
        ValueError: it cannot be sent. The message does not tell it.
    """
    key = (os.environ.get("SANDFARM_API_KEY", "") if key is None else key).strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError("the API key (SANDFARM_API_KEY, or api_key) must be printable ASCII in one line")
    return key


@dataclass(frozen=True)
class Settings:
    """How a farm is reached."""

    url: str
    key: str
    timeout: float
    retries: int
    max_pause: float
    outage: float

    @staticmethod
    def make(url: str | None, key: str | None, timeout: float, retries: int, max_pause: float, outage: float = 0.0) -> Settings:
        """Fills in what the environment says.

        Raises:
            ValueError: the address is none, or the key cannot be sent.
        """
        return Settings(address(url), api_key(key), timeout, max(retries, 0), max_pause, outage)


@dataclass(frozen=True)
class Call:
    """One request to the farm.

    Attributes:
        method: of HTTP.
        path: elements, not escaped.
        query: pairs; a name may come again.
        body: sent as JSON.
        content: sent as it is; made anew for each repetition.
        length: of the content, where it is known.
        wait: seconds that the farm may hold the answer; negative: its default for the route.
        key: Idempotency-Key of a POST.
        read: seconds of silence after which the answer counts as lost; 0: the client's timeout, and the wait.
        patience: seconds for which it is sent again, more often than others, once it may have arrived.
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
    read: float = 0
    patience: float = 0

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent again when nobody knows whether it arrived."""
        return self.method in {"GET", "HEAD", "PUT"} or bool(self.key)


def new_key() -> str:
    """A fresh Idempotency-Key."""
    return uuid.uuid4().hex


def backoff(attempt: int) -> float:
    """From a tenth of a second to two, with chance in it so that many clients do not come back at once."""
    full: float = min(0.1 * 2.0 ** min(attempt - 1, 10), 2.0)
    return full / 2 + random.random() * full / 2  # noqa: S311 # no secret


class Http:
    """Speaks to one farm."""

    def __init__(self, settings: Settings, io: IO) -> None:
        self.settings = settings
        self.io = io

    async def json(self, call: Call, has: str = "") -> dict[str, Any]:
        """Makes a request and gives the JSON object of its answer, which has such a field.

        Raises:
            SandfarmError: of the class for the answer's code; `InternalError` for one that is no farm's.
        """
        response, data = await self.answer(call)
        if not isinstance(data, dict) or (has and not data.get(has) and data.get(has) != []):
            raise self._stranger(call, response)
        return data

    async def link(self, call: Call) -> str:
        """Makes a request and gives what its answer leads to."""
        response, _ = await self._repeat(call, read=True)
        if not (response.is_redirect and response.headers.get("Location")):
            raise self._stranger(call, response)
        return str(response.headers["Location"])

    def _stranger(self, call: Call, response: httpx.Response) -> InternalError:
        to = response.headers.get("Location", "").partition("?")[0]  # behind that may be a signature
        said = f"leads to {to}" if response.is_redirect else f"is no Sandfarm's (HTTP {response.status_code})"
        return InternalError(f"the answer to {call.method} {said}: is the address {self.settings.url} right?", status=0)

    async def answer(self, call: Call) -> tuple[httpx.Response, Any]:
        """Makes a request and gives its answer, and the JSON in it; None for an empty one."""
        response, content = await self._repeat(call, read=True)
        if not content:
            if response.is_redirect:
                raise self._stranger(call, response)
            return response, None
        try:
            return response, json.loads(content)
        except ValueError:
            raise self._stranger(call, response) from None

    async def open(self, call: Call) -> httpx.Response:
        """Makes a request and gives its answer with the body unread. The caller releases it."""
        response = (await self._repeat(call, read=False))[0]
        if response.is_redirect:
            await self.io.release(response)
            raise self._stranger(call, response)
        return response

    async def _repeat(self, call: Call, *, read: bool) -> tuple[httpx.Response, bytes]:
        if call.method == "POST" and not call.key:
            call = replace(call, key=new_key())
        attempt, end = 1, 0.0
        while True:
            try:
                return await self._once(call, read=read)
            except httpx.TransportError as error:
                failure: SandfarmError = self._unreachable(error)
                sent = not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
                if sent and not end:
                    end = time.monotonic() + call.patience
                again = not isinstance(error, httpx.ReadTimeout) and (call.repeatable or not sent)
                cause: Exception = error
            except SandfarmError as error:
                failure, cause = error, error
                refused = error.status == 429 or (error.status in {502, 503, 504} and call.repeatable)
                again = refused and error.retry_after <= self.settings.max_pause
            if not again or (attempt > self.settings.retries and not (self.settings.retries and time.monotonic() < end)):
                if failure is cause:
                    raise failure
                raise failure from cause
            await self.io.sleep(max(backoff(attempt), failure.retry_after))
            attempt += 1

    async def _once(self, call: Call, *, read: bool) -> tuple[httpx.Response, bytes]:
        response = await self.io.send(self._request(call))
        done = False
        try:
            if response.status_code >= 400:
                error = await self._problem(response)
                if not (error.details or error.request_id):  # a farm gives both
                    error.message = f"{error.message}, which is no Sandfarm's answer: is the address {self.settings.url} right?"
                raise error
            content = await self.io.body(response) if read else b""
            done = not read
        except httpx.DecodingError:
            raise self._stranger(call, response) from None
        finally:
            if not done:
                await self.io.release(response)
        return response, content

    def _request(self, call: Call) -> httpx.Request:
        headers = {"Accept": "application/json", "User-Agent": f"sandfarm-python/{VERSION}"}
        content = call.content
        if any(part in {"", ".", ".."} for part in call.path[:-1]) or call.path[-1] in {".", ".."}:
            raise InvalidError(f"{'/'.join(call.path)} is no path of the farm: an id or a name in it is empty, or made of dots")
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
        held = MAX_WAIT if call.wait < 0 else call.wait
        timeout = httpx.Timeout(self.settings.timeout, read=call.read or self.settings.timeout + held, pool=None)
        query = list(call.query)
        if call.wait > 0:
            query.append(("wait", f"{min(call.wait, MAX_WAIT):g}"))
        url = self.settings.url + "".join("/" + quote(part, safe="") for part in call.path)
        return self.io.request(
            call.method, url + ("?" + urlencode(query) if query else ""), headers=headers, content=content, timeout=timeout
        )

    def _unreachable(self, error: httpx.TransportError) -> UnavailableError:
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return UnavailableError(f"no farm answers at {self.settings.url}: is it running, and is SANDFARM_URL right?")
        if isinstance(error, httpx.TimeoutException):
            return UnavailableError(f"the farm at {self.settings.url} did not answer in time")
        return UnavailableError(f"the connection to the farm at {self.settings.url} broke: {error or type(error).__name__}")

    async def _problem(self, response: httpx.Response) -> SandfarmError:
        content = b""
        try:
            async with aclosing(self.io.chunks(response)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    content += chunk
                    if len(content) > MAX_PROBLEM:  # a proxy's page may be anything
                        break
            problem = json.loads(content)
        except (httpx.TransportError, ValueError):
            problem = {}
        return of_problem(
            response.status_code,
            problem if isinstance(problem, dict) else {},
            title=response.reason_phrase,
            request_id=response.headers.get("X-Request-Id", ""),
            retry_after=_retry_after(response.headers.get("Retry-After", "")),
        )

    async def events(self, job_id: str, after: str = "", deadline: float | None = None) -> AsyncIterator[Event | None]:
        """The events of a job, from the first one or behind `after`, until its final state; None now and then in silence.

        Where the connection breaks it goes on behind the last event that came. `deadline` is of `time.monotonic`: behind it
        None is given at least once.
        """
        attempt, since = 0, 0.0
        while True:
            cause: Exception | None = None
            try:
                async with aclosing(self._stream(job_id, after, deadline)) as stream:  # type: ignore[type-var]
                    async for event in stream:
                        if event is not None:
                            attempt, after = 0, event.id
                        yield event
                        if event is not None and event.final:
                            return
            except (httpx.TransportError, UnavailableError) as error:
                cause = error
            if deadline is not None and time.monotonic() >= deadline:
                yield None
            attempt += 1
            since = time.monotonic() if attempt == 1 else since
            if attempt >= MAX_RECONNECTS and (cause is None or time.monotonic() - since >= self.settings.outage):
                why = cause or "the stream ended"
                raise UnavailableError(f"the events of job {job_id} broke off {attempt} times in a row: {why}") from cause
            await self.io.sleep(backoff(attempt))

    async def _stream(self, job_id: str, after: str, deadline: float | None) -> AsyncIterator[Event | None]:
        headers = {"Accept": "text/event-stream"}
        if after:
            headers["Last-Event-ID"] = after
        left = SILENCE if deadline is None else min(SILENCE, max(deadline - time.monotonic(), 0.1))
        call = Call("GET", ("v1", "jobs", job_id, "events"), headers=headers, read=left)
        response = await self.open(call)
        try:
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise self._stranger(call, response)
            async with aclosing(self.io.chunks(response)) as chunks, aclosing(frames(chunks, after)) as found:  # type: ignore[type-var]
                async for frame in found:
                    if frame is None:
                        yield None
                        continue
                    try:
                        data = json.loads(frame.data)
                    except ValueError:
                        raise InternalError(f"an event of job {job_id} is not JSON") from None
                    yield Event(frame.id, frame.name, data if isinstance(data, dict) else {})
        finally:
            await self.io.release(response)

    async def fetch(self, link: str, offset: int = 0) -> httpx.Response:
        """Opens what a link of the farm leads to, from a byte on. No credentials are sent with it, and it is named in no error.

        Raises:
            SandfarmError: it has expired, or the store cannot be reached.
        """
        headers = {"Accept-Encoding": "identity", "User-Agent": f"sandfarm-python/{VERSION}"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        timeout = httpx.Timeout(self.settings.timeout, read=SILENCE, pool=None)
        attempt = 1
        while True:
            try:
                response = await self.io.send(self.io.request("GET", link, headers=headers, content=None, timeout=timeout))
            except httpx.TransportError:
                if attempt > self.settings.retries:
                    raise UnavailableError("the store that a link leads to cannot be reached") from None
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
        raise InvalidError(f"the request holds text that is no Unicode: {error}") from None


def _retry_after(value: str) -> float:
    """Both forms of the header, in seconds; 0 for none."""
    if value.isdigit():
        return float(min(int(value), 24 * 3600))
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return 0.0
