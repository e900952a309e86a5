"""The client of LLM Python Code Sandbox, for programs that were written for it: change the import, and nothing else.

```python
from sandfarm.compat import SandboxClient

client = SandboxClient()
client.create_sandbox()
client.execute_code("print('Hello, Sandbox!')")
```

Its methods print what they did, and answer None (or False) where something went wrong, as they always did. New programs
are better off with `sandfarm.Sandbox`, whose errors are exceptions.
"""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from ._http import address
from ._http import api_key as key_of

__all__ = ["SandboxClient"]


class SandboxClient:
    """One sandbox at a time, over the routes that the farm keeps for this client.

    It closes its sandbox when it is garbage-collected.

    Args:
        base_url: address of the farm; default: `SANDFARM_URL`, or else `http://localhost:8000`.
        api_key: default: `SANDFARM_API_KEY`.
        verbose: print what is done.

    Attributes:
        base_url: address of the farm.
        sandbox_id: the sandbox; None: there is none.
    """

    def __init__(self, base_url: str | None = None, *, api_key: str | None = None, verbose: bool = True) -> None:
        self.sandbox_id: str | None = None
        self.base_url = address(base_url, "http://localhost:8000")
        self._verbose = verbose
        key = key_of(api_key)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Code may run for as long as the farm lets it; connecting may not take long.
        self._http = httpx.Client(headers=headers, timeout=httpx.Timeout(30.0, read=None), follow_redirects=False)

    def __del__(self) -> None:
        if getattr(self, "sandbox_id", None) and not sys.is_finalizing():
            self._verbose = False
            with contextlib.suppress(Exception):
                self.close_sandbox()
        with contextlib.suppress(Exception):
            self._http.close()

    def create_sandbox(self) -> str | None:
        """Makes a sandbox and gives its id; None where that failed."""
        answer = self._ask("create the sandbox", "POST", "sandbox/create")
        if answer is None:
            return None
        self.sandbox_id = str(answer.json()["sandbox_id"])
        self._say(f"created sandbox {self.sandbox_id}")
        return self.sandbox_id

    def execute_code(self, code: str) -> dict[str, Any] | None:
        """Runs code and gives `{"stdout", "stderr", "error", "traceback"}`; None where it could not be run."""
        answer = self._ask("run the code", "POST", self._at("execute"), content=code.encode())
        if answer is None:
            return None
        result: dict[str, Any] = answer.json()
        for name in ("stdout", "stderr", "error", "traceback"):
            if result.get(name):
                self._say(f"{name}: {result[name]}")
        return result

    def install_package(self, package_name: str) -> dict[str, Any] | None:
        """Installs a package and gives `{"success", "stdout", "stderr", "message"}`."""
        answer = self._ask("install the package", "POST", self._at("install"), json={"package_name": package_name})
        if answer is None:
            return None
        result: dict[str, Any] = answer.json()
        self._say(str(result.get("message", "")))
        return result

    def upload_file(self, file_path: str | os.PathLike[str], target_path: str | None = None) -> str | None:
        """Uploads a local file and gives its path in the sandbox: `target_path`, or else its own name."""
        with Path(file_path).open("rb") as file:
            answer = self._ask(
                "upload the file",
                "POST",
                self._at("upload"),
                files={"file": (Path(file_path).name, file)},
                params={"file_path": target_path} if target_path else {},
            )
        if answer is None:
            return None
        path = str(answer.json()["file_path"])
        self._say(f"uploaded {path}")
        return path

    def list_files(self) -> list[dict[str, Any]] | None:
        """Gives `{"path", "size"}` (bytes) for each file of the sandbox."""
        answer = self._ask("list the files", "GET", self._at("files"))
        if answer is None:
            return None
        files: list[dict[str, Any]] = answer.json()
        for file in files:
            self._say(f"- {file['path']} ({file['size']} bytes)")
        return files

    def download_file(self, file_path: str, save_path: str | os.PathLike[str] | None = None) -> str | None:
        """Downloads a file and gives the local path: `save_path`, or else the file's name in the current directory."""
        at = self._at(f"download/{quote(file_path, safe='/')}")
        target = Path(save_path or file_path.rsplit("/", 1)[-1])
        if at is None:
            self._no_sandbox()
            return None
        part = target.with_name(f".{uuid.uuid4().hex}.part")
        try:
            with self._http.stream("GET", f"{self.base_url}/{at}") as answer:
                if answer.status_code != 200:
                    answer.read()
                    self._failed("download the file", answer)
                    return None
                with part.open("wb") as file:
                    for chunk in answer.iter_bytes():
                        file.write(chunk)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        self._say(f"saved {target}")
        return str(save_path or target)

    def close_sandbox(self) -> bool:
        """Closes the sandbox; False where there is none, or that failed."""
        if self._ask("close the sandbox", "POST", self._at("close")) is None:
            return False
        self._say("closed the sandbox")
        self.sandbox_id = None
        return True

    def list_all_sandboxes(self) -> dict[str, dict[str, Any]] | None:
        """Gives every open sandbox by its id, with `created_at` in seconds since 1970."""
        answer = self._ask("list the sandboxes", "GET", "sandboxes")
        if answer is None:
            return None
        sandboxes: dict[str, dict[str, Any]] = answer.json()
        for sandbox_id, info in sandboxes.items():
            self._say(f"- {sandbox_id} (created at {info['created_at']})")
        return sandboxes

    def _at(self, what: str) -> str | None:
        return f"sandbox/{self.sandbox_id}/{what}" if self.sandbox_id else None

    def _ask(self, what: str, method: str, path: str | None, **request: Any) -> httpx.Response | None:
        if path is None:
            self._no_sandbox()
            return None
        answer = self._http.request(method, f"{self.base_url}/{path}", **request)
        if answer.status_code == 200:
            return answer
        self._failed(what, answer)
        return None

    def _no_sandbox(self) -> None:
        self._say("there is no sandbox: create one first")

    def _failed(self, what: str, answer: httpx.Response) -> None:
        self._say(f"could not {what}: {answer.text}")

    def _say(self, text: str) -> None:
        if self._verbose:
            print(text)
