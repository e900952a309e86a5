"""Run code that language models write, in the sandboxes of a Sandfarm.

```python
from sandfarm import Sandbox

with Sandbox(packages=["humanize"]) as box:
    box.run("import humanize")
    print(box.run("humanize.intcomma(1234567)"))
```

`Sandbox` and `Client` block; `AsyncSandbox` and `AsyncClient` have the same methods for asyncio. `SANDFARM_URL` is the
address of the farm (default `http://127.0.0.1:8000`), `SANDFARM_API_KEY` its key.
"""

from ._version import VERSION as __version__
from .aio import AsyncClient, AsyncSandbox
from .aio_files import AsyncArtifacts, AsyncFiles, AsyncPackages
from .aio_fs import AsyncFS
from .aio_ports import AsyncPort
from .aio_processes import AsyncProcess, AsyncProcesses
from .client import Client, Sandbox
from .errors import (
    ConflictError,
    ExhaustedError,
    InternalError,
    InvalidError,
    JobCanceled,
    JobError,
    JobFailed,
    JobLost,
    JobTimedOut,
    NotFoundError,
    ResultError,
    SandfarmError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
    WaitTimeout,
)
from .files import Artifacts, Files, Packages
from .fs import FS
from .live import Output, PortInfo, PortLink, ProcessInfo, RunningProcess, TerminalSize
from .models import (
    Artifact,
    AuditEntry,
    Event,
    FileChange,
    FileEntry,
    FileInfo,
    FleetEvent,
    Image,
    Job,
    Key,
    Minute,
    NewKey,
    NodeNeed,
    Package,
    Progress,
    Queue,
    Resources,
    SandboxInfo,
    Worker,
)
from .network import EgressEntry, Secret
from .ports import Port
from .processes import Process, Processes
from .results import (
    CodeError,
    CommandError,
    CommandOutcome,
    CommandResult,
    ExecuteResult,
    Installed,
    InstallResult,
    PackageError,
    Raised,
)
from .rich import Rich

__all__ = [
    "FS",
    "Artifact",
    "Artifacts",
    "AsyncArtifacts",
    "AsyncClient",
    "AsyncFS",
    "AsyncFiles",
    "AsyncPackages",
    "AsyncPort",
    "AsyncProcess",
    "AsyncProcesses",
    "AsyncSandbox",
    "AuditEntry",
    "Client",
    "CodeError",
    "CommandError",
    "CommandOutcome",
    "CommandResult",
    "ConflictError",
    "EgressEntry",
    "Event",
    "ExecuteResult",
    "ExhaustedError",
    "FileChange",
    "FileEntry",
    "FileInfo",
    "Files",
    "FleetEvent",
    "Image",
    "InstallResult",
    "Installed",
    "InternalError",
    "InvalidError",
    "Job",
    "JobCanceled",
    "JobError",
    "JobFailed",
    "JobLost",
    "JobTimedOut",
    "Key",
    "Minute",
    "NewKey",
    "NodeNeed",
    "NotFoundError",
    "Output",
    "Package",
    "PackageError",
    "Packages",
    "Port",
    "PortInfo",
    "PortLink",
    "Process",
    "ProcessInfo",
    "Processes",
    "Progress",
    "Queue",
    "Raised",
    "Resources",
    "ResultError",
    "Rich",
    "RunningProcess",
    "Sandbox",
    "SandboxInfo",
    "SandfarmError",
    "Secret",
    "TerminalSize",
    "TooLargeError",
    "UnauthorizedError",
    "UnavailableError",
    "WaitTimeout",
    "Worker",
    "__version__",
]
