"""What the farm reports: sandboxes, jobs, artifacts, files, packages. Each object is a snapshot."""

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
    """A file that a job created or changed. It outlives its sandbox.

    Attributes:
        id: such as `art_…`.
        sandbox_id: the sandbox of the job.
        job_id: the job.
        name: last element of the path.
        path: relative to the workspace.
        size: bytes.
        content_type: media type.
        sha256: hash of the content, in hex.
        created_at: when it was stored (UTC).
        expires_at: when the farm deletes it (UTC).
        url: presigned link. It needs no key and expires; `Artifacts.url` makes a new one.
    """

    id: str = ""
    sandbox_id: str = ""
    job_id: str = ""
    name: str = ""
    path: str = ""
    size: int = 0
    content_type: str = ""
    sha256: str = ""
    created_at: datetime = d.field(d.timestamp, default=NEVER)
    expires_at: datetime = d.field(d.timestamp, default=NEVER)
    url: str = field(default="", repr=False)  # a secret: anybody who has it can download


@dataclass(frozen=True)
class FileInfo:
    """A file or directory anywhere in a sandbox.

    Attributes:
        path: absolute.
        type: `file`, `dir`, `symlink` or `other`.
        size: bytes of a file; 0 for anything else.
        mode: permissions, four octal digits.
        uid: user id of the owner.
        gid: id of the owner's group.
        modified_at: last change of the content (UTC).
        target: what a symbolic link leads to, as it is written; None for anything else.
        etag: names this version: pass it as `if_match`.
    """

    path: str = ""
    type: str = "file"
    size: int = 0
    mode: str = ""
    uid: int = 0
    gid: int = 0
    modified_at: datetime = d.field(d.timestamp, default=NEVER)
    target: str | None = None
    etag: str = ""

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.type == "dir"


@dataclass(frozen=True)
class FileChange:
    """Something that happened to a file that is watched.

    Attributes:
        id: pass it as `after` to continue after this change.
        kind: `ready`, `created`, `changed`, `removed`, `renamed`, or `dropped`: something happened that no change tells.
        path: absolute; empty for `dropped`.
        type: `dir`, or `file` for anything else.
        from_: the path before, of `renamed`.
        metadata: of `changed`: only the mode, owner or times have changed, not the content.
        reason: of `dropped`.
        directories: how many are watched, of `ready`.
    """

    id: str = ""
    kind: str = ""
    path: str = ""
    type: str = ""
    from_: str | None = None
    metadata: bool = False
    reason: str = ""
    directories: int = 0


@dataclass(frozen=True)
class FileEntry:
    """A file or directory in the workspace.

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
    modified_at: datetime = d.field(d.timestamp, default=NEVER)
    type: str = "file"

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.type == "dir"


@dataclass(frozen=True)
class Package:
    """The status of one package in a sandbox.

    Attributes:
        name: normalized by PEP 503.
        status: `installing`, `installed`, `failed` or `not_found`.
        version: the installed version; empty if there is none.
        job_id: the latest job that installs or installed it; empty if there was none.
        message: why it failed, or what to do next.
        manager: `pip` or `npm`; empty if the package is not installed.
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
    """The limits of a sandbox.

    Attributes:
        memory_mb: MiB of memory. Files in the workspace and in /tmp count.
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
    """A snapshot of a sandbox.

    Attributes:
        id: such as `sbx_…`.
        name: given by the caller; need not be unique.
        state: `queued`, `starting`, `ready`, `busy`, `hibernated`, `closing`, `closed`, `expired`, `failed` or `lost`.
        reason: why it failed, was lost or ended; empty otherwise.
        image: name of the image.
        network: `none`, `packages` or `allowlist`; with the last one, `allow_hosts` are its rules.
        secrets: names of its secrets. The values are not returned.
        runtime: OCI runtime of its container, such as `runc` or `runsc` (gVisor); empty until it is chosen.
        generation: 1 at first; rises each time that its creation begins anew.
        resources: its limits.
        gpu: `{"count", "model"}`; None without a GPU.
        labels: given by the caller.
        env_names: names of its environment variables. The values are not returned.
        created_at: when it was requested (UTC).
        expires_at: when it ends at the latest (UTC).
        last_used_at: end of the last job (UTC).
        closed_at: when it ended; None if it is open.
        ttl_seconds: lifetime, from its creation or the last `keep_alive`.
        idle_seconds: how long it may be idle; 0: no limit.
        on_idle: what happens then: `close` or `hibernate`.
        one_shot: whether it was made by a run, and is closed with it.
        usage: what it used of late, the oldest first: `{"cpus", "memory_mb"}`.
    """

    id: str = ""
    name: str = ""
    state: str = ""
    reason: str = ""
    image: str = ""
    network: str = ""
    allow_hosts: tuple[str, ...] = d.field(tuple, default=())
    secrets: tuple[str, ...] = d.field(tuple, default=())
    runtime: str = ""
    generation: int = 1
    resources: Resources = d.field(d.object_of(Resources), default=Resources())
    gpu: Mapping[str, Any] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    env_names: tuple[str, ...] = d.field(tuple, default=())
    created_at: datetime = d.field(d.timestamp, default=NEVER)
    expires_at: datetime = d.field(d.timestamp, default=NEVER)
    last_used_at: datetime = d.field(d.timestamp, default=NEVER)
    closed_at: datetime | None = d.field(d.timestamp, default=None)
    ttl_seconds: int = 0
    idle_seconds: int = 0
    on_idle: str = "close"
    one_shot: bool = False
    usage: tuple[Mapping[str, Any], ...] = d.field(tuple, default=())

    @property
    def open(self) -> bool:
        """Whether it accepts jobs."""
        return self.state in {"queued", "starting", "ready", "busy"}


@dataclass(frozen=True)
class Timings:
    """How long a job waited in the queue, ran, and uploaded its artifacts, in milliseconds."""

    queue_ms: float = 0.0
    run_ms: float = 0.0
    upload_ms: float = 0.0


@dataclass(frozen=True)
class Waiting:
    """What a queued job waits for: a code, such as `fifo` or `no_room`, and a sentence."""

    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class JobProblem:
    """Why a job did not complete: an error code and a sentence."""

    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class Job:
    """A job and, when it is final, its outcome.

    Attributes:
        id: such as `job_…`.
        kind: `create`, `execute`, `command`, `install`, `file`, `run`, `close`, `interrupt` or `restart`.
        sandbox_id: the sandbox it runs in.
        state: `queued`, `running`, or a final state: `completed`, `failed`, `timed_out`, `canceled`, `lost`.
        attempt: how many workers have started it; 0 while it is queued.
        position: position in the queue of its sandbox, 1 is next; 0 if it is not queued.
        estimate_seconds: estimated wait of a create or run; None: unknown.
        waiting: what it waits for; None if it is not queued, or if that is unknown.
        created_at: when it was accepted (UTC).
        started_at: when a worker started it; None: not yet.
        finished_at: when it ended; None: not yet.
        timings: how long each phase took.
        request: the request, as the farm's JSON. Long code is truncated, and environment variables have no values. None if the
            farm itself created the job.
        result: `ExecuteResult`, `CommandResult` or `InstallResult`, depending on the kind; the farm's JSON for other kinds;
            None if there is no result yet. Jobs that timed out or were canceled have a partial result.
        error: why it did not complete; None otherwise.
        outcome: whether what it ran was successful: `ok`, or `failed` if code raised, an exit code is not 0 or a package of a
            create or an install was not installed (those of a run are in `result.installed`), and if the job failed, timed
            out or was lost; None: it has not ended, or was canceled.
    """

    id: str = ""
    kind: str = ""
    sandbox_id: str = ""
    state: str = ""
    attempt: int = 0
    position: int = 0
    estimate_seconds: float | None = None
    waiting: Waiting | None = d.field(d.object_of(Waiting), default=None)
    created_at: datetime = d.field(d.timestamp, default=NEVER)
    started_at: datetime | None = d.field(d.timestamp, default=None)
    finished_at: datetime | None = d.field(d.timestamp, default=None)
    timings: Timings = d.field(d.object_of(Timings), default=Timings())
    request: Any = field(default=None, repr=False)
    result: Any = field(default=None, repr=False)
    error: JobProblem | None = d.field(d.object_of(JobProblem), default=None)
    outcome: str | None = None

    @property
    def final(self) -> bool:
        """Whether it has ended."""
        return self.state in FINAL_STATES


@dataclass(frozen=True)
class Progress:
    """How far something has come.

    Attributes:
        message: what is being done.
        done: how much is done.
        total: how much there is; 0: unknown.
    """

    message: str = ""
    done: float = 0.0
    total: float = 0.0


@dataclass(frozen=True)
class Event:
    """One event of a job.

    Attributes:
        id: pass it as `after` to resume behind this event.
        name: `stdout`, `stderr`, `display`, `clear`, `progress`, `artifact` or `state`.
        data: its JSON: `{"text"}`, `{"display", "mime", "data"|"url", "display_id", "metadata", "result", "more", "update"}`,
            `{"wait"}`, `{"message", "done", "total"}`, an artifact, `{"state"}`.
    """

    id: str
    name: str
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The output of `stdout` and `stderr` events; empty for others."""
        return str(self.data.get("text") or "")

    @property
    def final(self) -> bool:
        """Whether it is the last event of the job."""
        return self.name == "state" and self.data.get("state") in FINAL_STATES


@dataclass(frozen=True)
class Image:
    """A sandbox image: its name, description, languages and size in bytes."""

    name: str = ""
    description: str = ""
    languages: tuple[str, ...] = d.field(tuple, default=())
    size: int = 0


@dataclass(frozen=True)
class Worker:
    """A live worker.

    Attributes:
        id: of the worker.
        node: the Docker engine it uses.
        host: its host name.
        version: its version.
        queues: the queues it serves.
        images: names of its images.
        slots: how many jobs of one tenant it can run at once; several have twice as many in all.
        running: how many jobs it runs now.
        sandboxes: how many sandboxes are open on it.
        started_at: when it started (UTC).
        seen_at: its last heartbeat (UTC).
        capacity: memory and cores of its node for sandboxes: `{"memory_mb", "cpus"}`.
        promised: how much of that is reserved.
        machine: the host of its node, and what its programs use: `{"memory_mb", "used_mb", "cpus", "load"}`; `None`: not known.
        pool: the warm pool of its node: `{"image", "runtime", "target", "ready"}`.
        runtimes: OCI runtimes that sandboxes of its node may have, the default first.
        hibernates: those of `runtimes` whose sandboxes can hibernate on its node.
        gpus: the GPUs of its node: `{"id", "model", "memory_mb", "leased"}`.
        gpus_leased: how many of them sandboxes have.
        problem: why it accepts no jobs; empty if it does.
        drain: how far the drain of its node is, for keys with the scope admin; `None` if the node is not drained.
    """

    id: str = ""
    node: str = ""
    host: str = ""
    version: str = ""
    queues: tuple[str, ...] = d.field(tuple, default=())
    images: tuple[str, ...] = d.field(tuple, default=())
    slots: int = 0
    running: int = 0
    sandboxes: int = 0
    started_at: datetime = d.field(d.timestamp, default=NEVER)
    seen_at: datetime = d.field(d.timestamp, default=NEVER)
    capacity: Mapping[str, Any] = field(default_factory=dict)
    promised: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] | None = None
    pool: tuple[Mapping[str, Any], ...] = d.field(tuple, default=())
    runtimes: tuple[str, ...] = d.field(tuple, default=())
    hibernates: tuple[str, ...] = d.field(tuple, default=())
    gpus: tuple[Mapping[str, Any], ...] = d.field(tuple, default=())
    gpus_leased: int = 0
    problem: str = ""
    drain: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Queue:
    """A queue.

    Attributes:
        name: name of the queue.
        depth: how many jobs wait.
        running: how many jobs run.
        oldest_seconds: how long the oldest job has waited.
        ended_per_minute: how many of its jobs ended in a minute, a mean over the last five; 0 without the scope `admin`.
        gpus: how many GPUs its workers have; 0 without the scope `admin`.
        gpus_leased: how many of them sandboxes have.
    """

    name: str = ""
    depth: int = 0
    running: int = 0
    oldest_seconds: float = 0.0
    ended_per_minute: float = 0.0
    gpus: int = 0
    gpus_leased: int = 0


@dataclass(frozen=True)
class NodeNeed:
    """How many nodes of a kind the farm needs, and why.

    Attributes:
        kind: `cpu` or `gpu`.
        model: the model of their GPUs; empty without GPUs.
        nodes: how many nodes take new sandboxes.
        wanted: how many nodes would take everything that waits, without those that are idle.
        idle_nodes: how many nodes could be removed.
        idle: their ids, at most 100.
        draining: how many nodes are drained.
        failing: how many nodes have only workers that accept no jobs.
        waiting: how many creates have waited for at least 5 seconds.
        oldest_seconds: how long the first of them has waited.
        asked: memory and cores that they ask for: `{"memory_mb", "cpus"}`.
        asked_gpus: GPUs that they ask for.
        placeable: for how many of them the nodes that exist have room.
        unfit: how many of them no node of the kind could take even if it were empty.
        capacity: memory and cores that the nodes have for sandboxes.
        promised: how much of that is reserved.
        pool_missing: how many members of the warm pool the nodes want and have not.
    """

    kind: str = ""
    model: str = ""
    nodes: int = 0
    wanted: int = 0
    idle_nodes: int = 0
    idle: tuple[str, ...] = d.field(tuple, default=())
    draining: int = 0
    failing: int = 0
    waiting: int = 0
    oldest_seconds: float = 0.0
    asked: Mapping[str, Any] = field(default_factory=dict)
    asked_gpus: int = 0
    placeable: int = 0
    unfit: int = 0
    capacity: Mapping[str, Any] = field(default_factory=dict)
    promised: Mapping[str, Any] = field(default_factory=dict)
    pool_missing: int = 0


@dataclass(frozen=True)
class Minute:
    """What became of the jobs that workers ended in one minute.

    Attributes:
        at: its beginning (UTC).
        ended: how many jobs ended.
        failed: how many of them neither completed nor were canceled.
        wait_ms: mean time from acceptance to claim.
        max_wait_ms: longest time from acceptance to claim.
        run_ms: mean time in the sandbox.
    """

    at: datetime = d.field(d.timestamp, default=NEVER)
    ended: int = 0
    failed: int = 0
    wait_ms: float = 0.0
    max_wait_ms: float = 0.0
    run_ms: float = 0.0


@dataclass(frozen=True)
class FleetEvent:
    """Something that happened to a worker or a node.

    Attributes:
        id: of the event.
        at: when it happened, or was noticed (UTC).
        kind: what happened, such as `worker_lost` or `node_drained`.
        node: the node.
        host: its host name; empty if it is not known.
        worker_id: the worker; empty for events of a node.
        jobs: of a lost worker, which other workers take over.
        sandboxes: of a node that ended, which are lost.
        detail: why a worker accepts no jobs, or how far a drain is.
    """

    id: str = ""
    at: datetime = d.field(d.timestamp, default=NEVER)
    kind: str = ""
    node: str = ""
    host: str = ""
    worker_id: str = ""
    jobs: int = 0
    sandboxes: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Key:
    """An API key, without the key itself.

    Attributes:
        id: of the key.
        tenant: owner of what is created with the key.
        name: free text.
        scopes: what the key may do: `run`, `read`, `metrics`, `admin`.
        origin: where it was made: `api` or `settings`.
        created_at: when it was made (UTC); None for a key of the settings.
        expires_at: when it expires (UTC); None: never.
        last_used_at: its last use, to about a minute (UTC); None: never.
    """

    id: str = ""
    tenant: str = ""
    name: str = ""
    scopes: tuple[str, ...] = d.field(tuple, default=())
    origin: str = ""
    created_at: datetime | None = d.field(d.timestamp, default=None)
    expires_at: datetime | None = d.field(d.timestamp, default=None)
    last_used_at: datetime | None = d.field(d.timestamp, default=None)


@dataclass(frozen=True)
class NewKey:
    """An API key that was just made: its record, and the key itself, which cannot be read again."""

    key: Key = d.field(d.object_of(Key), default=Key())
    secret: str = field(default="", repr=False)


@dataclass(frozen=True)
class AuditEntry:
    """Who asked the farm for what, and what came of it.

    Attributes:
        id: of the entry.
        at: when it happened (UTC).
        tenant: of the caller; empty: without a valid key.
        key_id: of the caller's key; empty: none; `local`: the operator on the farm's machine.
        route: method and path template of the request.
        subject: the id or tenant in the path, the key that was made, or the process that a tool started or ended; empty: none.
        job_id: the job that was accepted or canceled; empty: none.
        sandbox_id: the sandbox of that job or process, or of the link that a tool made; empty: none.
        from_: address of the caller; `local`: the farm's machine.
        status: HTTP status of the answer.
        request_id: found in the server's log.
        missed: entries before this one that could not be kept.
    """

    id: str = ""
    at: datetime = d.field(d.timestamp, default=NEVER)
    tenant: str = ""
    key_id: str = ""
    route: str = ""
    subject: str = ""
    job_id: str = ""
    sandbox_id: str = ""
    from_: str = ""
    status: int = 0
    request_id: str = ""
    missed: int = 0
