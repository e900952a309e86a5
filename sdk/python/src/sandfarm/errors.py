"""Errors: one class for each code of the farm's contract, and those of jobs and of the caller's code.

```
SandfarmError                    everything that this package raises on purpose
├── InvalidError                 invalid: what was asked for makes no sense (also a ValueError)
├── UnauthorizedError            unauthorized: the API key is missing or wrong
├── NotFoundError                not_found: there is no such sandbox, job, file, …
├── ConflictError                conflict: not in this state, such as work for a closed sandbox
├── TooLargeError                too_large: over one of the farm's limits on size
├── ExhaustedError               exhausted: too much at once; `retry_after` says when to come back
├── UnavailableError             unavailable: the farm, or a part of it, is down or cannot be reached
├── InternalError                internal: the farm's own fault; its log says more under `request_id`
├── JobError                     a job did not complete; `.job`, and `.result` as far as it came
│   ├── JobFailed · JobTimedOut · JobCanceled · JobLost
├── WaitTimeout                  the caller's own patience ended; the job goes on (also a TimeoutError)
└── ResultError                  raised only by `check()`: what ran did not do what it should
    ├── CodeError                the code raised or exited with another code than 0
    ├── CommandError             a command's exit code is not 0
    └── PackageError             a package could not be installed
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .models import Job
    from .results import CommandResult, ExecuteResult, InstallResult

__all__ = [
    "CodeError",
    "CommandError",
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
    "PackageError",
    "ResultError",
    "SandfarmError",
    "TooLargeError",
    "UnauthorizedError",
    "UnavailableError",
    "WaitTimeout",
]


class SandfarmError(Exception):
    """Anything that went wrong with the farm.

    Attributes:
        code: of the contract: `invalid`, `unauthorized`, `not_found`, `conflict`, `too_large`, `exhausted`,
            `unavailable` or `internal`; empty for errors of the caller's own code.
        message: what is wrong, in a sentence.
        status: of HTTP; 0 where no answer came.
        title: what kind of error, in a few words.
        request_id: under which the farm's log says more; empty where there is none.
        retry_after: seconds to wait before another try; 0 where the farm did not say.
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

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process and back: arguments by name are no part of what an exception pickles by itself."""
        return _again, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        what = ", ".join(part for part in (self.code, f"HTTP {self.status}" if self.status else "") if part)
        return f"{self.message.removesuffix('.')} ({what})" if what else self.message


def _again(kind: type[SandfarmError], args: tuple[Any, ...]) -> SandfarmError:
    return kind.__new__(kind, *args)


class InvalidError(SandfarmError, ValueError):
    """What was asked for makes no sense: the message says which field, and what it may hold."""

    code = "invalid"


class UnauthorizedError(SandfarmError):
    """The API key is missing or wrong: set `SANDFARM_API_KEY` or give `api_key`."""

    code = "unauthorized"


class NotFoundError(SandfarmError):
    """There is no such thing, or it belongs to another tenant."""

    code = "not_found"


class ConflictError(SandfarmError):
    """It cannot be done in this state: work for a closed sandbox, an Idempotency-Key with another body."""

    code = "conflict"


class TooLargeError(SandfarmError):
    """It is over one of the farm's limits on size (`Client.limits`)."""

    code = "too_large"


class ExhaustedError(SandfarmError):
    """Too much at once, after all repetitions. Come back in `retry_after` seconds."""

    code = "exhausted"


class UnavailableError(SandfarmError):
    """The farm cannot be reached, or a part that it needs is down, after all repetitions."""

    code = "unavailable"


class InternalError(SandfarmError):
    """The farm's own fault, or an answer that is not a farm's."""

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
        """What the job produced until it ended: a result like that of a completed one, or None."""
        return self.job.result


class JobFailed(JobError):
    """The job could not be run; the message says why and what to do."""


class JobTimedOut(JobError):
    """The job was over its `timeout`. `result` holds what there was until then."""


class JobCanceled(JobError):
    """Somebody cancelled the job, or closed its sandbox. `result` holds what there was until then."""


class JobLost(JobError):
    """The job's sandbox or worker vanished, and no other worker could take the job over."""


class WaitTimeout(SandfarmError, TimeoutError):
    """The caller waited long enough. The job goes on: wait again, or cancel it.

    Attributes:
        job: the job as it was last seen.
    """

    def __init__(self, message: str, *, job: Job) -> None:
        super().__init__(message)
        self.job = job


class ResultError(SandfarmError):
    """What ran did not do what it should. Only `check()` raises it, or the argument `check=True`."""


class CodeError(ResultError):
    """The code raised, exited with another code than 0, or its kernel died.

    Attributes:
        result: all that the code produced; `result.error` has the exception's name, text and traceback.
    """

    def __init__(self, message: str, *, result: ExecuteResult) -> None:
        super().__init__(message)
        self.result = result


class CommandError(ResultError):
    """A command's exit code is not 0.

    Attributes:
        result: the outcome of every command that ran.
    """

    def __init__(self, message: str, *, result: CommandResult) -> None:
        super().__init__(message)
        self.result = result


class PackageError(ResultError):
    """A package could not be installed; the others are.

    Attributes:
        result: the outcome for each package.
    """

    def __init__(self, message: str, *, result: InstallResult) -> None:
        super().__init__(message)
        self.result = result


_BY_CODE: Mapping[str, type[SandfarmError]] = {
    kind.code: kind
    for kind in (
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

_BY_STATUS: Mapping[int, str] = {
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


def of_problem(status: int, problem: Mapping[str, Any], *, title: str, request_id: str, retry_after: float) -> SandfarmError:
    """The error for an answer of 400 and above. `problem` is its JSON, empty where it has none."""
    code = str(problem.get("code") or _BY_STATUS.get(status) or ("invalid" if 400 <= status < 500 else "internal"))
    title = str(problem.get("title") or title)
    return _BY_CODE.get(code, SandfarmError)(
        str(problem.get("detail") or title or "no reason given"),
        code=code,
        status=status,
        title=title,
        request_id=str(problem.get("request_id") or request_id),
        retry_after=retry_after,
        details=problem,
    )


def of_job(job: Job) -> JobError:
    """The error for a final job that did not complete."""
    kind = _BY_STATE.get(job.state, JobFailed)
    if job.error is None:
        told = "conflict" if kind in {JobTimedOut, JobCanceled} else "internal"
        return kind(f"the job {job.id} is {job.state}", job=job, code=told)
    return kind(job.error.message, job=job, code=job.error.code)
