"""Request bodies: turns the arguments of the public methods into the farm's JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from .network import Secret

Env = Mapping[str, str]
Files = Mapping[str, "str | bytes"]


def compact(**fields: Any) -> dict[str, Any]:
    """A body without the fields that are None."""
    return {name: value for name, value in fields.items() if value is not None}


def string_list(value: str | Sequence[str] | None) -> list[str] | None:
    """One string or several, as a list."""
    return [value] if isinstance(value, str) else list(value) if value is not None else None


def flatten(packages: Sequence[str | Sequence[str]]) -> list[str]:
    """Packages that are given one by one, as lists, or both, as one list."""
    return [name for item in packages for name in ([item] if isinstance(item, str) else item)]


def gpu_request(gpu: int | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A GPU request from a number of devices, or as given."""
    return {"count": int(gpu)} if isinstance(gpu, int) else gpu


def resources(memory_mb: int | None, cpus: float | None, pids: int | None, disk_mb: int | None) -> dict[str, Any] | None:
    """The sandbox's limits; None for the farm's defaults."""
    return compact(memory_mb=memory_mb, cpus=cpus, pids=pids, disk_mb=disk_mb) or None


def input_files(files: Files | None) -> list[dict[str, str]] | None:
    """Files to put into the workspace before a run, from content by path."""
    if files is None:
        return None
    if not isinstance(files, Mapping):
        raise TypeError(f'files has the content of each path, such as {{"in.txt": "text"}}; it is a {type(files).__name__}')
    for path, content in files.items():
        if not isinstance(content, str | bytes | bytearray | memoryview):
            kind = type(content).__name__
            raise TypeError(f"files: the content of {path} is str or bytes, not {kind}: json.dumps(...) makes text of data")
    return [
        {"path": path, "content": content}
        if isinstance(content, str)
        else {"path": path, "content_base64": base64.b64encode(content).decode()}
        for path, content in files.items()
    ]


def execute(
    code: str,
    *,
    language: str | None,
    filename: str | None = None,
    context: str | None = None,
    timeout: int | None,
    env: Env | None,
    auto_install: bool,
    on_output_limit: str | None,
    callback_url: str | None,
) -> dict[str, Any]:
    """The body of an execute request."""
    return compact(
        code=code,
        language=language,
        filename=filename,
        context=context,
        timeout_seconds=timeout,
        env=env,
        auto_install=auto_install or None,
        on_output_limit=on_output_limit,
        callback_url=callback_url,
    )


def command(
    commands: str | Sequence[str],
    *,
    cwd: str | None,
    env: Env | None,
    timeout: int | None,
    auto_install: bool,
    on_output_limit: str | None,
    continue_on_error: bool,
    background: bool,
    callback_url: str | None,
) -> dict[str, Any]:
    """The body of a command request."""
    several = None if isinstance(commands, str) else list(commands)
    return compact(
        command=commands if several is None else None,
        commands=several,
        cwd=cwd,
        env=env,
        timeout_seconds=timeout,
        auto_install=auto_install or None,
        on_output_limit=on_output_limit,
        continue_on_error=continue_on_error or None,
        background=background or None,
        callback_url=callback_url,
    )


def secrets(given: Mapping[str, Secret] | None) -> dict[str, dict[str, str]] | None:
    """Secrets as the API reads them."""
    if given is None:
        return None
    return {name: {"host": s.host, "header": s.header, "value": s.value} for name, s in given.items()}
