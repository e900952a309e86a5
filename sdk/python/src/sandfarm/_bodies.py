"""What requests carry: the arguments of the public methods as the farm's JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

Env = Mapping[str, str]
Files = Mapping[str, "str | bytes"]


def compact(**fields: Any) -> dict[str, Any]:
    """A body without what the caller left out."""
    return {name: value for name, value in fields.items() if value is not None}


def names(packages: str | Sequence[str] | None) -> list[str] | None:
    """One package or several."""
    return [packages] if isinstance(packages, str) else list(packages) if packages is not None else None


def flat(packages: Sequence[str | Sequence[str]]) -> list[str]:
    """Packages that are given one by one, as lists, or both."""
    return [name for some in packages for name in ([some] if isinstance(some, str) else some)]


def devices(gpu: int | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """So many devices, or `{"count", "model"}`."""
    return {"count": int(gpu)} if isinstance(gpu, int) else gpu


def resources(memory_mb: int | None, cpus: float | None, pids: int | None, disk_mb: int | None) -> dict[str, Any] | None:
    """What the sandbox may use; None for the farm's defaults."""
    return compact(memory_mb=memory_mb, cpus=cpus, pids=pids, disk_mb=disk_mb) or None


def inputs(files: Files | None) -> list[dict[str, str]] | None:
    """Files that come with a run, by their path."""
    if files is None:
        return None
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
    context: str | None = None,
    timeout: int | None,
    env: Env | None,
    auto_install: bool,
    callback_url: str | None,
) -> dict[str, Any]:
    """The body of an execute."""
    return compact(
        code=code,
        language=language,
        context=context,
        timeout_seconds=timeout,
        env=env,
        auto_install=auto_install or None,
        callback_url=callback_url,
    )


def command(
    commands: str | Sequence[str],
    *,
    cwd: str | None,
    env: Env | None,
    timeout: int | None,
    continue_on_error: bool,
    background: bool,
    callback_url: str | None,
) -> dict[str, Any]:
    """The body of a command."""
    several = None if isinstance(commands, str) else list(commands)
    return compact(
        command=commands if several is None else None,
        commands=several,
        cwd=cwd,
        env=env,
        timeout_seconds=timeout,
        continue_on_error=continue_on_error or None,
        background=background or None,
        callback_url=callback_url,
    )
