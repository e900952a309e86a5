"""A progress line on a terminal. It appears after a second; nothing is written to anything but a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from typing import TextIO

from .models import Progress

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_INTERVAL = 0.1  # seconds
_BAR_WIDTH = 24


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a line can be redrawn on this stream."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except ValueError:  # closed
        return False


class ProgressLine:
    """Draws the line from a thread while its `with` block runs. Without a terminal it does nothing."""

    def __init__(self, title: str, *, enabled: bool | None = None, stream: TextIO | None = None, delay: float = 1.0) -> None:
        self._stream = stream or sys.stderr
        self.enabled = is_terminal(self._stream) if enabled is None else enabled
        self._title = title
        self._delay = delay
        self._progress = Progress()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = time.monotonic()

    def update(self, progress: Progress) -> None:
        """Sets what the line shows."""
        self._progress = progress

    def __enter__(self) -> ProgressLine:
        if self.enabled:
            self._thread = threading.Thread(target=self._draw, name="sandfarm-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        if self._end.wait(self._delay):
            return
        try:
            while True:
                text = self.text(time.monotonic() - self._began, shutil.get_terminal_size().columns)
                self._stream.write(f"\r{text}\x1b[K")
                self._stream.flush()
                if self._end.wait(_INTERVAL):
                    break
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        except (OSError, ValueError, UnicodeError):  # the terminal is gone
            return

    def text(self, seconds: float, columns: int) -> str:
        """The line after so many seconds, cut to the width of the terminal, without control characters."""
        p = self._progress
        parts = [_FRAMES[int(seconds / _INTERVAL) % len(_FRAMES)], self._title]
        if p.total > 0:
            share = min(max(p.done / p.total, 0.0), 1.0)
            full = int(share * _BAR_WIDTH)
            parts.append(f"[{'█' * full}{'·' * (_BAR_WIDTH - full)}] {share:4.0%}")
        if p.message:
            parts.append(" ".join(p.message.split()))
        parts.append(f"{seconds:.0f} s")
        line = "".join(c for c in " ".join(parts) if c.isprintable())  # a sandbox chooses names of files
        return line[: max(columns - 1, 1)]
