"""The workspace, artifacts and packages of one sandbox."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ._io import finish, iterate
from .aio_files import AsyncArtifacts, AsyncFiles, AsyncPackages
from .models import Artifact, FileChange, FileEntry, Job, Package, Progress
from .results import InstallResult


class Files:
    """The workspace of one sandbox. Paths are relative to it; a path outside raises `InvalidError`."""

    def __init__(self, files: AsyncFiles) -> None:
        self._async = files

    def list(self, path: str = "", *, recursive: bool = False) -> list[FileEntry]:
        """Lists a directory, or the whole tree below it, sorted by path.

        Raises:
            NotFoundError: there is no such directory.
        """
        return finish(self._async.list(path, recursive=recursive))

    def stat(self, path: str) -> FileEntry:
        """Returns the type, size and mode of a path.

        Raises:
            NotFoundError: the path does not exist.
        """
        return finish(self._async.stat(path))

    def exists(self, path: str) -> bool:
        """Whether a path exists."""
        return finish(self._async.exists(path))

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Reads a file into memory. For large files use `download`.

        Args:
            path: path of the file.
            offset: the first byte; a negative one counts from the end.
            length: bytes at most; default: to the end.

        Raises:
            NotFoundError: there is no such file.
        """
        return finish(self._async.read(path, offset=offset, length=length))

    def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Reads a text file.

        Raises:
            UnicodeDecodeError: the file is not text in this encoding.
        """
        return finish(self._async.read_text(path, encoding=encoding, errors=errors))

    def write(self, path: str, content: str | bytes | bytearray | memoryview) -> FileEntry:
        """Writes text (as UTF-8) or bytes to a file. It replaces the file and creates missing directories.

        Raises:
            TypeError: the content is neither text nor bytes.
            TooLargeError: the content is over the farm's limit.
        """
        return finish(self._async.write(path, content))

    def upload(self, local: str | os.PathLike[str], path: str | None = None) -> builtins.list[FileEntry]:
        """Uploads a local file of any size, or a folder.

        From a folder, `.git`, `__pycache__`, `node_modules` and virtual environments are excluded. The farm stores the whole
        folder or nothing.

        Args:
            local: the local file or folder.
            path: for a file: its new path, or a directory if it ends in a slash. For a folder: the directory for its
                content. Default: the workspace itself.
        """
        return finish(self._async.upload(local, path))

    def download(self, path: str, local: str | os.PathLike[str] | None = None) -> Path:
        """Downloads to a local file or into a directory. Default: the current directory, under the file's name.

        The content is streamed. When the connection breaks, the download resumes. The local file appears when it is complete,
        in place of one that had its name.

        Returns:
            the path of the local file.
        """
        return finish(self._async.download(path, local))

    def remove(self, path: str) -> None:
        """Removes a file, or a directory with its content.

        Raises:
            NotFoundError: the path does not exist.
        """
        finish(self._async.remove(path))

    def move(self, source: str, target: str) -> FileEntry:
        """Moves a file or directory within the workspace."""
        return finish(self._async.move(source, target))

    def mkdir(self, path: str) -> FileEntry:
        """Creates a directory and its parents."""
        return finish(self._async.mkdir(path))

    def watch(
        self, path: str = "", *, recursive: bool = True, ignore: Sequence[str] = (), after: str = ""
    ) -> Iterator[FileChange]:
        """Iterates over what happens to files; see `FS.watch`."""
        return iterate(self._async.watch(path, recursive=recursive, ignore=ignore, after=after))

    def url(self, path: str) -> str:
        """Makes a link to the current content of a file. Anybody who has it can download until it expires."""
        return finish(self._async.url(path))


class Artifacts:
    """The files that the jobs of one sandbox created. They outlive the sandbox."""

    def __init__(self, artifacts: AsyncArtifacts) -> None:
        self._async = artifacts

    def list(self, *, job: Job | str | None = None) -> list[Artifact]:
        """Lists all artifacts of the sandbox, newest first, or those of one job."""
        return finish(self._async.list(job=job))

    def save(self, artifact: Artifact | str, path: str | os.PathLike[str] | None = None) -> Path:
        """Downloads an artifact; see `Client.save_artifact`."""
        return finish(self._async.save(artifact, path))

    def read(self, artifact: Artifact | str) -> bytes:
        """Downloads an artifact into memory."""
        return finish(self._async.read(artifact))

    def url(self, artifact: Artifact | str) -> str:
        """Makes a new link to an artifact. Anybody who has it can download until it expires."""
        return finish(self._async.url(artifact))

    def delete(self, artifact: Artifact | str) -> None:
        """Deletes an artifact. Its links stop working."""
        finish(self._async.delete(artifact))


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
        """Installs packages and waits for the result. Running kernels can import them at once.

        Args:
            packages: requirements such as `"humanize"` or `"pandas>=2"`, or lists of them.
            manager: `pip` (default) or `npm`.
            timeout: seconds that the install may take, from 1 (default 300).
            on_progress: called with the progress.
            wait_timeout: how many seconds to wait at most.
            idempotency_key: your own key.
            check: raise `PackageError` if a package could not be installed.

        Raises:
            InvalidError: a requirement is not valid.
            PackageError: with `check`: a package could not be installed; `.result` has the outcome for each.
            JobError: the install could not run, or exceeded its timeout.
            WaitTimeout: `wait_timeout` has expired; the install continues.
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
        """Starts an install and returns its job: wait for it, or poll the `status` of each package."""
        return finish(
            self._async.start(
                *packages, manager=manager, timeout=timeout, callback_url=callback_url, idempotency_key=idempotency_key
            )
        )

    def status(self, name: str, *, manager: str | None = None) -> Package:
        """The status of one package: `installing`, `installed`, `failed` or `not_found`. Names are compared by PEP 503."""
        return finish(self._async.status(name, manager=manager))

    def list(self) -> list[Package]:
        """Lists the packages of the image, and those that were installed, are being installed, or failed."""
        return finish(self._async.list())
