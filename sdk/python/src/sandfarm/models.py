"""What the farm tells about itself: sandboxes, jobs, artifacts, files, packages. All are values, as of when they were read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from . import _decode as d

FINAL_STATES = frozenset({"completed", "failed", "timed_out", "canceled", "lost"})

NEVER = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Artifact:
    """A file that a job made. It outlives its sandbox.

    Attributes:
        id: such as `art_…`.
        sandbox_id: the sandbox it was made in.
        job_id: the job that made it.
        name: last element of its path.
        path: relative to the workspace.
        size: bytes.
        content_type: media type.
        sha256: of its bytes, in hex.
        created_at: when it was stored (UTC).
        expires_at: when it will be removed (UTC).
        url: presigned link that works without a key and expires; `Artifacts.url` makes a new one.
    """

    id: str = ""
    sandbox_id: str = ""
    job_id: str = ""
    name: str = ""
    path: str = ""
    size: int = 0
    content_type: str = ""
    sha256: str = ""
    created_at: datetime = d.by(d.time, default=NEVER)
    expires_at: datetime = d.by(d.time, default=NEVER)
    url: str = field(default="", repr=False)  # a secret: whoever has it can download


@dataclass(frozen=True)
class FileEntry:
    """A file or directory of the workspace.

    Attributes:
        path: relative to the workspace.
        size: bytes.
        mode: permissions, four octal digits.
        modified_at: last change of the content (UTC).
        type: `file`, `dir`, `symlink` or `other`.
    """

    path: str = ""
    size: int = 0
    mode: str = ""
    modified_at: datetime = d.by(d.time, default=NEVER)
    type: str = "file"

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.type == "dir"


@dataclass(frozen=True)
class Package:
    """How it stands with one package of a sandbox.

    Attributes:
        name: normalised by PEP 503.
        status: `installing`, `installed`, `failed` or `not_found`.
        version: that is there; empty where none is.
        job_id: the job that installs it, or was the last to; empty where none did.
        message: why it failed, or what to do next.
        manager: `pip` or `npm`; empty where it is not there.
    """

    name: str = ""
    status: str = ""
    version: str = ""
    job_id: str = ""
    message: str = ""
    manager: str = ""

    @property
    def installed(self) -> bool:
        """Whether code can import it."""
        return self.status == "installed"


@dataclass(frozen=True)
class Resources:
    """What a sandbox may use.

    Attributes:
        memory_mb: MiB of memory; files in the workspace and /tmp count.
        cpus: cores.
        pids: processes and threads.
        disk_mb: MiB of the workspace.
    """

    memory_mb: int = 0
    cpus: float = 0.0
    pids: int = 0
    disk_mb: int = 0


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox as it was when it was asked for.

    Attributes:
        id: such as `sbx_…`.
        name: that the caller gave; need not be unique.
        state: `queued`, `starting`, `ready`, `busy`, `hibernated`, `closing`, `closed`, `expired`, `failed` or `lost`.
        reason: why it failed, was lost or ended; empty otherwise.
        image: name of its image.
        network: `none`, `packages`, `allowlist` or `full`.
        resources: what it may use.
        gpu: `{"count", "model"}`; None for no devices.
        labels: the caller's labels.
        env_names: names of its environment variables; their values are not told.
        created_at: when it was asked for (UTC).
        expires_at: when it ends at the latest (UTC).
        last_used_at: end of its last use (UTC).
        closed_at: when it ended; None: it has not.
        ttl_seconds: life from its creation, or from the last `keep_alive`.
        idle_seconds: life after the end of its last use; 0: no such limit.
    """

    id: str = ""
    name: str = ""
    state: str = ""
    reason: str = ""
    image: str = ""
    network: str = ""
    resources: Resources = d.by(d.one(Resources), default=Resources())
    gpu: Mapping[str, Any] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    env_names: tuple[str, ...] = d.by(tuple, default=())
    created_at: datetime = d.by(d.time, default=NEVER)
    expires_at: datetime = d.by(d.time, default=NEVER)
    last_used_at: datetime = d.by(d.time, default=NEVER)
    closed_at: datetime | None = d.by(d.time, default=None)
    ttl_seconds: int = 0
    idle_seconds: int = 0

    @property
    def open(self) -> bool:
        """Whether work may be sent to it."""
        return self.state in {"queued", "starting", "ready", "busy"}


@dataclass(frozen=True)
class Timings:
    """Where the time of a job went, in milliseconds: in the queue, in the sandbox, for uploading its artifacts."""

    queue_ms: float = 0.0
    run_ms: float = 0.0
    upload_ms: float = 0.0


@dataclass(frozen=True)
class JobProblem:
    """Why a job did not complete: a code of the contract and a sentence."""

    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class Job:
    """A piece of work and, once it is final, its outcome.

    Attributes:
        id: such as `job_…`.
        kind: `create`, `execute`, `command`, `install`, `file`, `run`, `close`, `interrupt` or `restart`.
        sandbox_id: the sandbox it works in.
        state: `queued`, `running`, or one of the final ones: `completed`, `failed`, `timed_out`, `canceled`, `lost`.
        attempt: how many workers have taken it; 0 while it is queued.
        position: place in its line while it is queued, 1 is next; 0 otherwise.
        estimate_seconds: until a create or run begins; None: not known.
        created_at: when it was accepted (UTC).
        started_at: when a worker took it; None: not yet.
        finished_at: when it ended; None: not yet.
        timings: where the time went.
        result: `ExecuteResult`, `CommandResult` or `InstallResult` by its kind, the farm's JSON for other kinds, None
            until there is one. Jobs that timed out or were cancelled have what there was until then.
        error: why it did not complete; None otherwise.
    """

    id: str = ""
    kind: str = ""
    sandbox_id: str = ""
    state: str = ""
    attempt: int = 0
    position: int = 0
    estimate_seconds: float | None = None
    created_at: datetime = d.by(d.time, default=NEVER)
    started_at: datetime | None = d.by(d.time, default=None)
    finished_at: datetime | None = d.by(d.time, default=None)
    timings: Timings = d.by(d.one(Timings), default=Timings())
    result: Any = field(default=None, repr=False)
    error: JobProblem | None = d.by(d.one(JobProblem), default=None)

    @property
    def final(self) -> bool:
        """Whether it has ended."""
        return self.state in FINAL_STATES


@dataclass(frozen=True)
class Progress:
    """How far something is.

    Attributes:
        message: what is going on.
        done: how much is done.
        total: how much there is; 0: not known.
    """

    message: str = ""
    done: float = 0.0
    total: float = 0.0


@dataclass(frozen=True)
class Event:
    """One event of a job.

    Attributes:
        id: give it as `after` to go on behind it.
        name: `stdout`, `stderr`, `display`, `progress`, `artifact` or `state`.
        data: its JSON: `{"text"}`, `{"mime", "data"|"url"}`, `{"message", "done", "total"}`, an artifact, `{"state"}`.
    """

    id: str
    name: str
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The output of `stdout` and `stderr`; empty for others."""
        return str(self.data.get("text") or "")

    @property
    def final(self) -> bool:
        """Whether it is the last one."""
        return self.name == "state" and self.data.get("state") in FINAL_STATES


@dataclass(frozen=True)
class Image:
    """A sandbox image on offer: its name, what is in it, the languages it runs, its bytes on disk."""

    name: str = ""
    description: str = ""
    languages: tuple[str, ...] = d.by(tuple, default=())
    size: int = 0


@dataclass(frozen=True)
class Worker:
    """A live worker.

    Attributes:
        id: of the worker.
        node: the engine it is attached to.
        host: its host name.
        version: its version.
        queues: that it serves.
        images: names of its images.
        slots: jobs at once.
        running: jobs now.
        sandboxes: open ones.
        problem: why it takes no jobs now; empty when it does.
    """

    id: str = ""
    node: str = ""
    host: str = ""
    version: str = ""
    queues: tuple[str, ...] = d.by(tuple, default=())
    images: tuple[str, ...] = d.by(tuple, default=())
    slots: int = 0
    running: int = 0
    sandboxes: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Queue:
    """How deep a queue is: jobs that wait, jobs that run, and for how many seconds the next one has waited."""

    name: str = ""
    depth: int = 0
    running: int = 0
    oldest_seconds: float = 0.0
