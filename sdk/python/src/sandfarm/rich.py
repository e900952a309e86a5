"""The values that code displays: pictures, tables, text."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _html

_SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp")


def is_text(mime: str) -> bool:
    """Whether a value of a MIME type is given as text; others are given as bytes."""
    return (
        mime.startswith("text/")
        or mime.endswith(("json", "+xml"))
        or mime
        in {
            "application/javascript",
            "application/xml",
        }
    )


@dataclass(frozen=True)
class Rich:
    """A value that code displayed, in each of the formats that it came in. Notebooks show it as it was meant.

    HTML that could run in the page is shown in a frame of its own; `data` has it as it came.

    Attributes:
        data: by MIME type: `str` for text, JSON and SVG, `bytes` for anything else, such as PNG.
        links: by MIME type: presigned links to what is too large to be fetched by itself (over 32 MiB).
    """

    data: Mapping[str, str | bytes] = field(default_factory=dict, repr=False)
    links: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def mimes(self) -> tuple[str, ...]:
        """The MIME types that it has."""
        return (*self.data, *self.links)

    @property
    def text(self) -> str:
        """As plain text; empty where there is none."""
        return self._str("text/plain")

    @property
    def html(self) -> str:
        """As HTML, as it came: not to be trusted. Empty where there is none."""
        return self._str("text/html")

    @property
    def png(self) -> bytes | None:
        """As a PNG image; None where there is none."""
        value = self.data.get("image/png")
        return value if isinstance(value, bytes) else None

    @property
    def svg(self) -> str:
        """As an SVG image, as it came; empty where there is none."""
        return self._str("image/svg+xml")

    def save(self, path: str | Path, mime: str | None = None) -> Path:
        """Writes one format to a local file; by default that of a picture if there is one, else the first.

        Raises:
            KeyError: it has no such format, or that lies behind a link.
        """
        chosen = mime or next((m for m in self.data if m.startswith("image/")), next(iter(self.data), ""))
        value = self.data[chosen]
        target = Path(path)
        target.write_bytes(value.encode() if isinstance(value, str) else value)
        return target

    def _str(self, mime: str) -> str:
        value = self.data.get(mime, "")
        return value if isinstance(value, str) else ""

    def __str__(self) -> str:
        return self.text or f"<{', '.join(self.mimes) or 'nothing'}>"

    def __repr__(self) -> str:
        return f"Rich({', '.join(self.mimes)})"

    def _repr_png_(self) -> bytes | None:
        return self.png

    def _repr_html_(self) -> str | None:
        for mime in _SHOWN:
            if isinstance(value := self.data.get(mime), bytes):
                return f'<img src="data:{mime};base64,{base64.b64encode(value).decode()}" style="max-width:100%">'
        if self.svg:  # as an image: its scripts do not run
            return (
                f'<img src="data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}" style="max-width:100%">'
            )
        return _html.safe(self.html) if self.html else None

    def _repr_mimebundle_(self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None) -> dict[str, str]:
        bundle = {"text/plain": str(self)}
        for mime in _SHOWN:
            if isinstance(value := self.data.get(mime), bytes):
                bundle[mime] = base64.b64encode(value).decode()
                break
        else:
            if shown := self._repr_html_():
                bundle["text/html"] = shown
        if latex := self._str("text/latex"):
            bundle["text/latex"] = latex
        return {m: v for m, v in bundle.items() if (not include or m in include) and (not exclude or m not in exclude)}


def value_of(mime: str, data: str) -> str | bytes:
    """The value of one MIME type as it is sent: `text/…` as it is, anything else base64, also SVG and JSON."""
    if mime.startswith("text/"):
        return data
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return data
    return raw.decode("utf-8", "replace") if is_text(mime) else raw


def grouped(entries: Any) -> tuple[Rich, ...]:
    """Puts the formats of one value together. The farm sends them one by one, in the order of their names."""
    out: list[Rich] = []
    data: dict[str, str | bytes] = {}
    links: dict[str, str] = {}
    last = ""
    for entry in entries or ():
        mime = str(entry.get("mime") or "")
        if last and (mime <= last or last == "text/plain"):
            out.append(Rich(data, links))
            data, links = {}, {}
        last = mime
        if entry.get("data") is not None:
            data[mime] = value_of(mime, str(entry["data"]))
        elif entry.get("url"):
            links[mime] = str(entry["url"])
    if last:
        out.append(Rich(data, links))
    return tuple(out)
