"""One line on a terminal that says what is being waited for. Nothing is written in the first second, or to anything else."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from typing import TextIO

from .models import Progress

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_EVERY = 0.1  # seconds
_WIDTH = 24  # of the bar


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a line can be drawn there again and again."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except ValueError:  # closed
        return False


class Line:
    """Draws in a thread of its own between `with` and its end. Without a terminal it does nothing."""

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
        """Says how far it is."""
        self._progress = progress

    def __enter__(self) -> Line:
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
                if self._end.wait(_EVERY):
                    break
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        except (OSError, ValueError, UnicodeError):  # the terminal has gone
            return

    def text(self, seconds: float, columns: int) -> str:
        """The line after some seconds, for a terminal of some width."""
        p = self._progress
        parts = [_FRAMES[int(seconds / _EVERY) % len(_FRAMES)], self._title]
        if p.total > 0:
            share = min(max(p.done / p.total, 0.0), 1.0)
            full = int(share * _WIDTH)
            parts.append(f"[{'█' * full}{'·' * (_WIDTH - full)}] {share:4.0%}")
        if p.message:
            parts.append(" ".join(p.message.split()))
        parts.append(f"{seconds:.0f} s")
        return " ".join(parts)[: max(columns - 1, 1)]
