"""Errors: one class for each error code of the farm, and one for each way a job can end early.

```
SandfarmError                    base class of everything that this package raises on purpose
├── InvalidError                 invalid: the request is not valid (also a ValueError)
├── UnauthorizedError            unauthorized: the API key is missing or wrong
├── NotFoundError                not_found: there is no such sandbox, job, file, …
├── ConflictError                conflict: not possible in the current state, such as a job for a closed sandbox
├── TooLargeError                too_large: over one of the farm's size limits
├── ExhaustedError               exhausted: too many requests or jobs; retry after `retry_after` seconds
├── UnavailableError             unavailable: the farm, or a component of it, cannot be reached
├── InternalError                internal: a fault of the farm; its log has more under `request_id`
├── JobError                     a job did not complete; see `.job` and the partial `.result`
│   ├── JobFailed · JobTimedOut · JobCanceled · JobLost
├── WaitTimeout                  `wait_timeout` has expired and the job continues (also a TimeoutError)
└── ResultError                  raised only by `check()`; its subclasses are in `sandfarm.results`
    ├── CodeError                the code raised, or its exit code is not 0
    ├── CommandError             the exit code of a command is not 0
    └── PackageError             a package could not be installed
```
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .models import Job

__all__ = [
    "ConflictError",
    "ExhaustedError",
    "InternalError",
    "InvalidError",
    "JobCanceled",
    "JobError",
    "JobFailed",
    "JobLost",
    "JobTimedOut",
    "NotFoundError",
    "ResultError",
    "SandfarmError",
    "TooLargeError",
    "UnauthorizedError",
    "UnavailableError",
    "WaitTimeout",
]


class SandfarmError(Exception):
    """Base class of all errors of this package.

    Attributes:
        code: error code of the farm: `invalid`, `unauthorized`, `not_found`, `conflict`, `too_large`, `exhausted`,
            `unavailable` or `internal`; empty for errors in the code that ran.
        message: what is wrong, in a sentence.
        status: HTTP status; 0 if there was no answer.
        title: the kind of error, in a few words.
        request_id: find it in the farm's log; empty if there is none.
        retry_after: seconds to wait before the next try; 0 if the farm did not say.
        details: the whole problem as the farm sent it.
    """

    code: str = ""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        status: int = 0,
        title: str = "",
        request_id: str = "",
        retry_after: float = 0.0,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code:
            self.code = code
        self.status = status
        self.title = title
        self.request_id = request_id
        self.retry_after = retry_after
        self.details: Mapping[str, Any] = dict(details or {})

    @property
    def errors(self) -> tuple[Mapping[str, str], ...]:
        """Every field that is wrong, as `{"pointer", "detail"}`: a JSON pointer into the request and a sentence."""
        listed = self.details.get("errors")
        return tuple(listed) if isinstance(listed, list) else ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the attributes too: by default exceptions lose their keyword arguments."""
        return _unpickle, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        origin = ", ".join(part for part in (self.code, f"HTTP {self.status}" if self.status else "") if part)
        return f"{self.message.removesuffix('.')} ({origin})" if origin else self.message


def _unpickle(cls: type[SandfarmError], args: tuple[Any, ...]) -> SandfarmError:
    return cls.__new__(cls, *args)


class InvalidError(SandfarmError, ValueError):
    """The request is not valid. `errors` lists the fields that are wrong."""

    code = "invalid"


class UnauthorizedError(SandfarmError):
    """The API key is missing or wrong: set `SANDFARM_API_KEY` or pass `api_key`."""

    code = "unauthorized"


class NotFoundError(SandfarmError):
    """It does not exist, or it belongs to another tenant."""

    code = "not_found"


class ConflictError(SandfarmError):
    """Not possible in the current state: a job for a closed sandbox, an Idempotency-Key with another body."""

    code = "conflict"


class TooLargeError(SandfarmError):
    """It is over one of the farm's size limits (`Client.limits`)."""

    code = "too_large"


class ExhaustedError(SandfarmError):
    """Too many requests or jobs, after all retries. Try again in `retry_after` seconds."""

    code = "exhausted"

    @property
    def quota(self) -> Mapping[str, Any] | None:
        """The quota of your tenant that is used up, as `{"name", "limit", "used"}`; None if it is another limit."""
        found = self.details.get("quota")
        return found if isinstance(found, dict) else None


class UnavailableError(SandfarmError):
    """The farm, or a component of it, cannot be reached, after all retries."""

    code = "unavailable"


class InternalError(SandfarmError):
    """A fault of the farm, or an answer that does not come from a Sandfarm."""

    code = "internal"


class JobError(SandfarmError):
    """A job did not complete.

    Attributes:
        job: the job as it ended.
    """

    def __init__(self, message: str, *, job: Job, code: str = "") -> None:
        super().__init__(message, code=code)
        self.job = job

    @property
    def result(self) -> Any:
        """The partial result, of the same class as that of a completed job; None if there is none."""
        return self.job.result


class JobFailed(JobError):
    """The job could not run. The message says why and what to do."""


class JobTimedOut(JobError):
    """The job exceeded its `timeout`. `result` has the output until then."""

    def __str__(self) -> str:
        return self.message


class JobCanceled(JobError):
    """The job was canceled, or its sandbox was closed. `result` has the output until then."""

    def __str__(self) -> str:
        return self.message


class JobLost(JobError):
    """The sandbox or worker of the job is gone, and no other worker could take the job over."""


class WaitTimeout(SandfarmError, TimeoutError):
    """The time to wait is over. The job continues: wait again, or cancel it.

    Attributes:
        job: the job as it was last seen.
    """

    def __init__(self, message: str, *, job: Job) -> None:
        super().__init__(message)
        self.job = job


class ResultError(SandfarmError):
    """What ran was not successful. Only `check()` and the argument `check=True` raise it.

    The packages that could not be installed automatically and the farm's notes are notes of the exception, which its traceback
    shows; with Python 3.10 its message ends with them.
    """

    def __init__(self, message: str, *, remarks: Sequence[str] = ()) -> None:
        if sys.version_info >= (3, 11):
            super().__init__(message)
            for line in remarks:
                self.add_note(line)
        else:
            super().__init__("\n".join([message, *remarks]))


_BY_CODE: Mapping[str, type[SandfarmError]] = {
    cls.code: cls
    for cls in (
        InvalidError,
        UnauthorizedError,
        NotFoundError,
        ConflictError,
        TooLargeError,
        ExhaustedError,
        UnavailableError,
        InternalError,
    )
}

_BY_STATE: Mapping[str, type[JobError]] = {
    "failed": JobFailed,
    "timed_out": JobTimedOut,
    "canceled": JobCanceled,
    "lost": JobLost,
}

_CODE_BY_STATUS: Mapping[int, str] = {
    401: "unauthorized",
    403: "unauthorized",
    404: "not_found",
    409: "conflict",
    410: "not_found",
    413: "too_large",
    429: "exhausted",
    502: "unavailable",
    503: "unavailable",
    504: "unavailable",
}


# What texts of the farm name, and what it is in this package.
_HERE = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"timeout_seconds", "timeout"),
        (r"POST /v1/sandboxes/\w+/packages with manager npm", 'sandbox.packages.install(…, manager="npm")'),
        (r"POST /v1/sandboxes/\w+/packages\b", "sandbox.packages.install(…)"),
        (r"GET /v1/sandboxes/\w+/packages\b", "sandbox.packages.list()"),
        (r"POST /v1/sandboxes/\w+/(restart|resume)\b", r"sandbox.\1()"),
        (r"POST …/processes with stdin", "sandbox.processes.start(…, stdin=True)"),
        (r"PATCH /v1/sandboxes/\{id\} or sandfarm sandbox allow", "sandbox.update(allow_hosts=…)"),
        (r"\(files of a run, --file of sandfarm run\)", "(files of a run)"),
        (r"\(sandfarm cp, upload_file_to_sandbox of MCP, PUT …/files/\)", "(sandbox.files.upload)"),
    )
)


def as_here(text: str) -> str:
    """A text of the farm with the names that methods and arguments have in this package."""
    for pattern, name in _HERE:
        text = pattern.sub(name, text)
    return text


def error_from_problem(
    status: int, problem: Mapping[str, Any], *, title: str, request_id: str, retry_after: float
) -> SandfarmError:
    """The error for an answer with a status of 400 or above. `problem` is its JSON; empty if it has none."""
    code = str(problem.get("code") or _CODE_BY_STATUS.get(status) or ("invalid" if 400 <= status < 500 else "internal"))
    title = str(problem.get("title") or title)
    message = as_here(str(problem.get("detail") or title or "no reason given"))
    if status == 401:
        message += " Set SANDFARM_API_KEY, or pass api_key."
    return _BY_CODE.get(code, SandfarmError)(
        message,
        code=code,
        status=status,
        title=title,
        request_id=str(problem.get("request_id") or request_id),
        retry_after=retry_after,
        details=problem,
    )


def error_from_job(job: Job) -> JobError:
    """The error for a final job that did not complete."""
    cls = _BY_STATE.get(job.state, JobFailed)
    if job.error is None:
        code = "conflict" if cls in {JobTimedOut, JobCanceled} else "internal"
        return cls(f"the job {job.id} is {job.state}", job=job, code=code)
    return cls(as_here(job.error.message), job=job, code=job.error.code)
