"""All files of one sandbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ._io import finish, iterate
from .aio_fs import AsyncFS
from .models import FileChange, FileInfo


class FS:
    """All files of one sandbox, as its user sees them. Paths are absolute, or relative to the workspace.

    These methods act at once, beside running jobs. Those of `Files` are jobs in line with the others.
    """

    def __init__(self, fs: AsyncFS) -> None:
        self._async = fs

    def list(self, path: str = "", *, depth: int = 1) -> list[FileInfo]:
        """Lists what is under a path: a directory before what is in it. A depth of 0 describes the path itself.

        Raises:
            NotFoundError: there is no such path.
        """
        return finish(self._async.list(path, depth=depth))

    def stat(self, path: str) -> FileInfo:
        """Describes a path: type, size, mode, owner, time, target of a link, version. It follows no link.

        Raises:
            NotFoundError: the path does not exist.
        """
        return finish(self._async.stat(path))

    def exists(self, path: str) -> bool:
        """Whether a path exists, also as a link that leads nowhere."""
        return finish(self._async.exists(path))

    def read(self, path: str) -> bytes:
        """Reads a file into memory. When the connection breaks, it continues with the same version.

        Raises:
            NotFoundError: there is no such file.
            ConflictError: it is a directory, or changed while it was read.
        """
        return finish(self._async.read(path))

    def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Reads a text file.

        Raises:
            UnicodeDecodeError: the file is not text in this encoding.
        """
        return finish(self._async.read_text(path, encoding=encoding, errors=errors))

    def write(
        self,
        path: str,
        content: str | bytes | bytearray | memoryview,
        *,
        append: bool = False,
        offset: int | None = None,
        mode: int | None = None,
        if_match: str | None = None,
        new: bool = False,
    ) -> FileInfo:
        """Writes text (as UTF-8) or bytes, and creates missing directories. Readers see the old file or the new one.

        Args:
            path: the file.
            content: what is written.
            append: write behind the end instead, in place.
            offset: write from this byte on instead, in place, and keep the rest.
            mode: permissions, such as 0o600. Default: those that the file has, or 0o644.
            if_match: only if the file is this version (`FileInfo.etag`); `*`: any.
            new: only if there is no file.

        Raises:
            TypeError: the content is neither text nor bytes.
            ConflictError: the condition does not hold, or the path is a directory.
        """
        return finish(self._async.write(path, content, append=append, offset=offset, mode=mode, if_match=if_match, new=new))

    def chmod(self, path: str, mode: int) -> FileInfo:
        """Sets the permissions of a file, such as 0o755."""
        return finish(self._async.chmod(path, mode))

    def copy(self, source: str, target: str) -> FileInfo:
        """Copies a file, or a directory with all that is in it. The copy is there complete or not at all."""
        return finish(self._async.copy(source, target))

    def move(self, source: str, target: str) -> FileInfo:
        """Moves a file or directory, also to another file system."""
        return finish(self._async.move(source, target))

    def symlink(self, path: str, target: str) -> FileInfo:
        """Makes a symbolic link at `path`. Its target may be anything."""
        return finish(self._async.symlink(path, target))

    def mkdir(self, path: str) -> FileInfo:
        """Creates a directory and its parents. It may exist."""
        return finish(self._async.mkdir(path))

    def remove(self, path: str) -> None:
        """Removes a file, or a directory with its content.

        Raises:
            NotFoundError: the path does not exist.
        """
        finish(self._async.remove(path))

    def watch(
        self, path: str = "", *, recursive: bool = True, ignore: Sequence[str] = (), after: str = ""
    ) -> Iterator[FileChange]:
        """Iterates over what happens to a directory, all below it, or a file, until you stop.

        The first change is `ready`: changes are reported from then on. `dropped` means that changes were
        missed: list the tree again. When the connection breaks, the watch continues after the last change.

        Args:
            path: what is watched. Default: the workspace.
            recursive: all directories below it, too.
            ignore: patterns of names that are left out, such as `*.pyc` or `node_modules`.
            after: the id of the last change that you have.
        """
        return iterate(self._async.watch(path, recursive=recursive, ignore=ignore, after=after))
