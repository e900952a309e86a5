"""Displayed values: pictures, tables, text."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import _html

_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_TEXT = frozenset({"application/javascript", "application/xml"})


def is_text(mime: str) -> bool:
    """Whether values of a MIME type are `str`; all others are `bytes`."""
    return mime.startswith("text/") or mime.endswith(("json", "+xml")) or mime in _TEXT


@dataclass(frozen=True)
class Rich:
    """A value that code displayed, in each format that it has. Notebooks show it as a picture, a table or text.

    Notebooks get safe HTML: scripts run in a sandboxed frame or not at all. `data` has the HTML as it came.

    Attributes:
        data: by MIME type: `str` for text, JSON and SVG, `bytes` for anything else, such as PNG.
        links: by MIME type: presigned links to data that was not downloaded, because it is over 32 MiB.
        display_id: the name that the code gave the value; empty if it gave none.
        metadata: how to show the value, such as its size, in Jupyter's form. It is untrusted.
        result: it is the value of the last expression of the code, and not one that the code displayed.
        update: it replaces the value with the same `handle`. Only `on_result` gets such values: results have the last state.
        handle: the same for all states of a value that `on_result` gets; empty for values of results.
    """

    data: Mapping[str, str | bytes] = field(default_factory=dict, repr=False)
    links: Mapping[str, str] = field(default_factory=dict, repr=False)
    display_id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    result: bool = False
    update: bool = field(default=False, compare=False)  # the same value is equal, however it was obtained
    handle: str = field(default="", compare=False)

    @property
    def mimes(self) -> tuple[str, ...]:
        """The MIME types that it has."""
        return (*self.data, *self.links)

    @property
    def text(self) -> str:
        """As plain text; empty if there is none."""
        return self._str("text/plain")

    @property
    def html(self) -> str:
        """As HTML, which is untrusted; empty if there is none."""
        return self._str("text/html")

    @property
    def png(self) -> bytes | None:
        """As a PNG image; None if there is none."""
        value = self.data.get("image/png")
        return value if isinstance(value, bytes) else None

    @property
    def svg(self) -> str:
        """As an SVG image, which is untrusted; empty if there is none."""
        return self._str("image/svg+xml")

    def save(self, path: str | Path, mime: str | None = None) -> Path:
        """Writes one format to a local file: by default the first picture, or else the first format.

        Raises:
            KeyError: it does not have this format, or only a link to it.
        """
        chosen = mime or next((m for m in self.data if m.startswith("image/")), next(iter(self.data), ""))
        value = self.data[chosen]
        target = Path(path)
        target.write_bytes(value.encode() if isinstance(value, str) else value)
        return target

    def show(self) -> None:
        """Shows it in a notebook. An update replaces what it updates: pass `on_result=Rich.show`, so that animations move."""
        from IPython import display as notebook

        show: Any = notebook.update_display if self.update else notebook.display
        if self.handle:
            show(self, display_id=self.handle)
        else:
            show(self)

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
        for mime in _PICTURES:
            if isinstance(value := self.data.get(mime), bytes):
                return _picture(mime, value)
        if self.svg:  # scripts do not run in an image
            return _picture("image/svg+xml", self.svg.encode())
        return _html.untrusted(self.html) if self.html else None

    def _repr_mimebundle_(self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None) -> dict[str, str]:
        bundle = {"text/plain": str(self)}
        for mime in _PICTURES:
            if isinstance(value := self.data.get(mime), bytes):
                bundle[mime] = base64.b64encode(value).decode()
                break
        else:
            if shown := self._repr_html_():
                bundle["text/html"] = shown
        if latex := self._str("text/latex"):
            bundle["text/latex"] = latex
        return {m: v for m, v in bundle.items() if (not include or m in include) and (not exclude or m not in exclude)}


def _picture(mime: str, content: bytes) -> str:
    return f'<img src="data:{mime};base64,{base64.b64encode(content).decode()}" style="max-width:100%">'


def _decoded(mime: str, data: str) -> str | bytes:
    """Decodes one format: `text/…` is sent as it is, anything else as base64, also SVG and JSON."""
    if mime.startswith("text/"):
        return data
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return data
    return raw.decode("utf-8", "replace") if is_text(mime) else raw


class DisplayGroups:
    """Groups the formats of an event stream into values. The farm sends the formats of a value one by one, plain text last.

    `display` is the number of the value that a format belongs to. Older farms do not send it; there, formats come sorted by
    MIME type, and a value ends at plain text or where the order starts again.
    """

    def __init__(self, job_id: str = "") -> None:
        self._job = job_id
        self._data: dict[str, str | bytes] = {}
        self._links: dict[str, str] = {}
        self._first: Mapping[str, Any] = {}  # entry of the value that is being collected
        self._mime = ""
        self._count = 0  # of the numbers so far

    def add(self, entry: Mapping[str, Any]) -> list[Rich]:
        """Adds the next format. Returns the value before it if this format starts a new one."""
        mime, number = str(entry.get("mime") or ""), entry.get("display")
        if number is None:
            starts = mime <= self._mime or self._mime == "text/plain"
        else:  # an update of a value has its number and the same formats again
            other = any(entry.get(key) != self._first.get(key) for key in ("display", "update"))
            starts = other or mime in self._data or mime in self._links
        before = self.end() if starts else []
        if not self._mime:
            self._first = entry
        self._mime = mime
        _add_format(self._data, self._links, entry)
        return before

    def end(self) -> list[Rich]:
        """Returns the value that is being collected, if any."""
        if not self._mime:
            return []
        value = _rich(self._data, self._links, self._first)
        number = self._first.get("display")
        if isinstance(number, int):
            value = replace(value, handle=f"{self._job}/{number}", update=number < self._count)
            self._count = max(self._count, number + 1)
        self._data, self._links, self._mime = {}, {}, ""
        return [value]


def _rich(data: dict[str, str | bytes], links: dict[str, str], entry: Mapping[str, Any]) -> Rich:
    metadata = entry.get("metadata")
    hints = metadata if isinstance(metadata, Mapping) else {}
    return Rich(data, links, str(entry.get("display_id") or ""), hints, entry.get("result") is True)


def _add_format(data: dict[str, str | bytes], links: dict[str, str], entry: Mapping[str, Any]) -> None:
    mime = str(entry.get("mime") or "")
    if entry.get("data") is not None:
        data[mime] = _decoded(mime, str(entry["data"]))
    elif entry.get("url"):
        links[mime] = str(entry["url"])


def group(entries: Any) -> tuple[Rich, ...]:
    """Groups the entries of a result into values. An entry that updates a value replaces the earlier one."""
    listed = list(entries or ())
    if any(entry.get("display") is None for entry in listed):
        groups = DisplayGroups()
        values = [value for entry in listed for value in groups.add(entry)]
        return (*values, *groups.end())
    by_number: dict[Any, tuple[dict[str, str | bytes], dict[str, str], Mapping[str, Any]]] = {}
    for entry in listed:
        data, links, _ = by_number.setdefault(entry["display"], ({}, {}, entry))
        data.pop(str(entry.get("mime")), None)
        links.pop(str(entry.get("mime")), None)
        _add_format(data, links, entry)
    return tuple(_rich(data, links, entry) for data, links, entry in by_number.values())
