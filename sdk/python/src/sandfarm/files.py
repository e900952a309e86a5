"""The workspace, artifacts and packages of one sandbox."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._io import finish
from .models import Artifact, FileEntry, Job, Package, Progress
from .results import InstallResult

if TYPE_CHECKING:
    from .aio_files import AsyncArtifacts, AsyncFiles, AsyncPackages


class Files:
    """The workspace of one sandbox. Paths are relative to it; one that leads out is an `InvalidError`."""

    def __init__(self, files: AsyncFiles) -> None:
        self._async = files

    def list(self, path: str = "", *, recursive: bool = False) -> list[FileEntry]:
        """The entries of a directory, or of the whole tree below it, sorted by path.

        Raises:
            NotFoundError: there is no such directory.
        """
        return finish(self._async.list(path, recursive=recursive))

    def stat(self, path: str) -> FileEntry:
        """What a path is, its size in bytes and its mode.

        Raises:
            NotFoundError: nothing is there.
        """
        return finish(self._async.stat(path))

    def exists(self, path: str) -> bool:
        """Whether anything is there."""
        return finish(self._async.exists(path))

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes of a file, in memory. For large ones there is `download`.

        Args:
            path: of the file.
            offset: the first byte; a negative one counts from the end.
            length: bytes at most; default: to the end.

        Raises:
            NotFoundError: there is no such file.
        """
        return finish(self._async.read(path, offset=offset, length=length))

    def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The text of a file.

        Raises:
            UnicodeDecodeError: it is not text in this encoding.
        """
        return finish(self._async.read_text(path, encoding=encoding, errors=errors))

    def write(self, path: str, content: str | bytes | bytearray | memoryview) -> FileEntry:
        """Writes text (as UTF-8) or bytes to a file, which is replaced; missing directories are made.

        Raises:
            TooLargeError: it is over the farm's limit on files.
        """
        return finish(self._async.write(path, content))

    def upload(self, local: str | os.PathLike[str], path: str | None = None) -> builtins.list[FileEntry]:
        """Uploads a local file of any size, or a folder with all that is in it.

        Of a folder `.git`, `__pycache__`, `node_modules` and virtual environments are left out, and the farm takes all of
        it or nothing.

        Args:
            local: the file or folder here.
            path: where it goes: a file's new path (a directory when it ends in a slash), or the directory that a folder's
                content goes to. Default: the workspace itself, under the file's own name.
        """
        return finish(self._async.upload(local, path))

    def download(self, path: str, local: str | os.PathLike[str] | None = None) -> Path:
        """Downloads to a local file, or into a directory; default: the current one, under the file's name.

        Any size is streamed, and goes on where a connection broke. The local file appears when it is whole.

        Returns:
            where it is now.
        """
        return finish(self._async.download(path, local))

    def remove(self, path: str) -> None:
        """Removes a file, or a directory with all that is in it.

        Raises:
            NotFoundError: nothing is there.
        """
        finish(self._async.remove(path))

    def move(self, source: str, target: str) -> FileEntry:
        """Renames a file or directory within the workspace."""
        return finish(self._async.move(source, target))

    def mkdir(self, path: str) -> FileEntry:
        """Makes a directory and those above it."""
        return finish(self._async.mkdir(path))

    def url(self, path: str) -> str:
        """Makes a link to a file as it is now. Anybody may download with it until it expires."""
        return finish(self._async.url(path))


class Artifacts:
    """The files that the jobs of one sandbox made. They are there when the sandbox is gone."""

    def __init__(self, artifacts: AsyncArtifacts) -> None:
        self._async = artifacts

    def list(self, *, job: Job | str | None = None) -> list[Artifact]:
        """All of them, newest first, or those of one job."""
        return finish(self._async.list(job=job))

    def save(self, artifact: Artifact | str, path: str | os.PathLike[str] | None = None) -> Path:
        """Downloads one; see `Client.save_artifact`."""
        return finish(self._async.save(artifact, path))

    def read(self, artifact: Artifact | str) -> bytes:
        """The whole content of one, in memory."""
        return finish(self._async.read(artifact))

    def url(self, artifact: Artifact | str) -> str:
        """Makes a fresh link to one. Anybody may download with it until it expires."""
        return finish(self._async.url(artifact))


class Packages:
    """The packages of one sandbox."""

    def __init__(self, packages: AsyncPackages) -> None:
        self._async = packages

    def install(
        self,
        *packages: str | Sequence[str],
        manager: str | None = None,
        timeout: int | None = None,
        on_progress: Callable[[Progress], Any] | None = None,
        wait_timeout: float | None = None,
        idempotency_key: str | None = None,
        check: bool = True,
    ) -> InstallResult:
        """Installs packages and waits until they are there. A kernel that runs can import them.

        Args:
            packages: such as `"humanize"`, `"pandas>=2"`, or a list of them.
            manager: `pip` (default) or `npm`.
            timeout: seconds that the install may take, from 1 (default 300).
            on_progress: gets what is being done.
            wait_timeout: seconds to wait at most.
            idempotency_key: a key of your own.
            check: raise where one of them could not be installed.

        Raises:
            InvalidError: a name is none.
            PackageError: with `check`: at least one could not be installed; `.result` has the outcome for each.
            JobError: the install could not be run, or was over its timeout.
            WaitTimeout: `wait_timeout` is over; the install goes on.
        """
        return finish(
            self._async.install(
                *packages,
                manager=manager,
                timeout=timeout,
                on_progress=on_progress,
                wait_timeout=wait_timeout,
                idempotency_key=idempotency_key,
                check=check,
            )
        )

    def start(
        self,
        *packages: str | Sequence[str],
        manager: str | None = None,
        timeout: int | None = None,
        callback_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Starts an install and gives its job at once: wait for it, or ask for the `status` of each package."""
        return finish(
            self._async.start(
                *packages, manager=manager, timeout=timeout, callback_url=callback_url, idempotency_key=idempotency_key
            )
        )

    def status(self, name: str, *, manager: str | None = None) -> Package:
        """How it stands with one package: `installing`, `installed`, `failed` or `not_found`. Names are compared by PEP 503."""
        return finish(self._async.status(name, manager=manager))

    def list(self) -> list[Package]:
        """What the image brought, what was installed, what is on its way, and what could not be installed."""
        return finish(self._async.list())
