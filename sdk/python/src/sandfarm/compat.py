"""The client of LLM Python Code Sandbox. Programs written for it change only the import.

```python
from sandfarm.compat import SandboxClient

client = SandboxClient()
client.create_sandbox()
client.execute_code("print('Hello, Sandbox!')")
```

As in the original, its methods print what they do and return None (or False) on failure. New programs should use
`sandfarm.Sandbox`, which raises exceptions.
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
from ._http import api_key as resolve_key
from ._transfer import local_name
from .errors import InvalidError

__all__ = ["SandboxClient"]


class SandboxClient:
    """One sandbox at a time, over the farm's compatibility routes.

    It closes its sandbox when it is garbage-collected.

    Args:
        base_url: address of the farm. Default: `SANDFARM_URL`, or else `http://localhost:8000`.
        api_key: default: `SANDFARM_API_KEY`, or the key in the file `SANDFARM_API_KEY_FILE`.
        verbose: print what each method does.

    Attributes:
        base_url: address of the farm.
        sandbox_id: the open sandbox; None if there is none.
    """

    def __init__(self, base_url: str | None = None, *, api_key: str | None = None, verbose: bool = True) -> None:
        self.sandbox_id: str | None = None
        self.base_url = address(base_url, "http://localhost:8000")
        self._verbose = verbose
        key = resolve_key(api_key)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # The farm limits how long code runs; only connecting has a timeout here.
        self._http = httpx.Client(headers=headers, timeout=httpx.Timeout(30.0, read=None), follow_redirects=False)

    def __del__(self) -> None:
        if getattr(self, "sandbox_id", None) and not sys.is_finalizing():
            self._verbose = False
            with contextlib.suppress(Exception):
                self.close_sandbox()
        with contextlib.suppress(Exception):
            self._http.close()

    def create_sandbox(self) -> str | None:
        """Creates a sandbox and returns its id; None on failure."""
        answer = self._request("create the sandbox", "POST", "sandbox/create")
        if answer is None:
            return None
        self.sandbox_id = str(answer.json()["sandbox_id"])
        self._print(f"created sandbox {self.sandbox_id}")
        return self.sandbox_id

    def execute_code(self, code: str) -> dict[str, Any] | None:
        """Runs code and returns `{"stdout", "stderr", "error", "traceback"}`; None if it could not run."""
        answer = self._request("run the code", "POST", self._path("execute"), content=code.encode())
        if answer is None:
            return None
        result: dict[str, Any] = answer.json()
        for name in ("stdout", "stderr", "error", "traceback"):
            if result.get(name):
                self._print(f"{name}: {result[name]}")
        return result

    def install_package(self, package_name: str) -> dict[str, Any] | None:
        """Installs a package and returns `{"success", "stdout", "stderr", "message"}`."""
        answer = self._request("install the package", "POST", self._path("install"), json={"package_name": package_name})
        if answer is None:
            return None
        result: dict[str, Any] = answer.json()
        self._print(str(result.get("message", "")))
        return result

    def upload_file(self, file_path: str | os.PathLike[str], target_path: str | None = None) -> str | None:
        """Uploads a local file and returns its path in the sandbox: `target_path`, or else its own name."""
        with Path(file_path).open("rb") as file:
            answer = self._request(
                "upload the file",
                "POST",
                self._path("upload"),
                files={"file": (Path(file_path).name, file)},
                params={"file_path": target_path} if target_path else {},
            )
        if answer is None:
            return None
        path = str(answer.json()["file_path"])
        self._print(f"uploaded {path}")
        return path

    def list_files(self) -> list[dict[str, Any]] | None:
        """Returns `{"path", "size"}` (bytes) for each file in the sandbox."""
        answer = self._request("list the files", "GET", self._path("files"))
        if answer is None:
            return None
        files: list[dict[str, Any]] = answer.json()
        for file in files:
            self._print(f"- {file['path']} ({file['size']} bytes)")
        return files

    def download_file(self, file_path: str, save_path: str | os.PathLike[str] | None = None) -> str | None:
        """Downloads a file and returns the local path: `save_path`, or else the file's name in the current directory."""
        path = self._path(f"download/{quote(file_path, safe='/')}")
        if path is None:
            self._report_no_sandbox()
            return None
        try:
            target = Path(save_path or local_name(file_path))
        except InvalidError as error:
            self._print(str(error))
            return None
        part = target.with_name(f".{uuid.uuid4().hex}.part")
        try:
            with self._http.stream("GET", f"{self.base_url}/{path}") as answer:
                if answer.status_code != 200:
                    answer.read()
                    self._report_failure("download the file", answer)
                    return None
                with part.open("wb") as file:
                    for chunk in answer.iter_bytes():
                        file.write(chunk)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        self._print(f"saved {target}")
        return str(save_path or target)

    def close_sandbox(self) -> bool:
        """Closes the sandbox; False if there is none, or on failure."""
        if self._request("close the sandbox", "POST", self._path("close")) is None:
            return False
        self._print("closed the sandbox")
        self.sandbox_id = None
        return True

    def list_all_sandboxes(self) -> dict[str, dict[str, Any]] | None:
        """Returns all open sandboxes by id, with `created_at` in seconds since 1970."""
        answer = self._request("list the sandboxes", "GET", "sandboxes")
        if answer is None:
            return None
        sandboxes: dict[str, dict[str, Any]] = answer.json()
        for sandbox_id, info in sandboxes.items():
            self._print(f"- {sandbox_id} (created at {info['created_at']})")
        return sandboxes

    def _path(self, action: str) -> str | None:
        return f"sandbox/{self.sandbox_id}/{action}" if self.sandbox_id else None

    def _request(self, action: str, method: str, path: str | None, **request: Any) -> httpx.Response | None:
        if path is None:
            self._report_no_sandbox()
            return None
        answer = self._http.request(method, f"{self.base_url}/{path}", **request)
        if answer.status_code == 200:
            return answer
        self._report_failure(action, answer)
        return None

    def _report_no_sandbox(self) -> None:
        self._print("there is no sandbox: create one first")

    def _report_failure(self, action: str, answer: httpx.Response) -> None:
        self._print(f"could not {action}: {answer.text}")

    def _print(self, text: str) -> None:
        if self._verbose:
            print(text)
