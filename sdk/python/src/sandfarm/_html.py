"""HTML that a notebook may show: what comes out of a sandbox is not trusted, and must not run in the caller's page."""

from __future__ import annotations

import html
from html.parser import HTMLParser

# What tables, text and pictures need.
_TAGS = frozenset(
    "a abbr b blockquote br caption code col colgroup dd details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr i img ins "
    "kbd li mark ol p pre q s samp small span strong sub summary sup table tbody td tfoot th thead tr tt u ul var".split()
)
_ATTRIBUTES = frozenset(
    "abbr align alt border class colspan dir height lang rowspan scope span start title valign width".split()
)
_DROPPED = frozenset({"style", "title", "head", "meta", "link", "base"})  # left out without loss
_VOID = frozenset({"br", "col", "hr", "img"})
_PICTURES = ("data:image/png;", "data:image/jpeg;", "data:image/gif;", "data:image/webp;")
_IFRAME = (
    '<iframe sandbox="allow-scripts" referrerpolicy="no-referrer" '
    'style="width:100%;height:480px;border:0" srcdoc="{}"></iframe>'
)


class _Cleaner(HTMLParser):
    """Writes again what is known to be harmless. Anything else makes the text active."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.out: list[str] = []
        self.active = False
        self._open: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _DROPPED:
            self._silent += tag in {"style", "title"}
            return
        if tag in {"html", "body"}:
            return
        if tag not in _TAGS:
            self.active = True
            return
        kept = "".join(f' {name}="{html.escape(value or "")}"' for name, value in attrs if self._keeps(tag, name, value or ""))
        self.out.append(f"<{tag}{kept}>")
        if tag not in _VOID:
            self._open.append(tag)

    def _keeps(self, tag: str, name: str, value: str) -> bool:
        if name.startswith("on"):
            self.active = True
            return False
        if tag == "a" and name == "href":
            return value.startswith(("https://", "http://", "mailto:", "#"))
        if tag == "img" and name == "src":
            return value.startswith(_PICTURES)
        return name in _ATTRIBUTES

    def handle_endtag(self, tag: str) -> None:
        if tag in {"style", "title"}:
            self._silent = max(self._silent - 1, 0)
        elif tag in self._open:
            while (last := self._open.pop()) != tag:
                self.out.append(f"</{last}>")
            self.out.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.out.append(html.escape(data, quote=False))

    def text(self) -> str:
        """All of it, with every element closed."""
        return "".join(self.out) + "".join(f"</{tag}>" for tag in reversed(self._open))


def safe(text: str) -> str:
    """Makes a sandbox's HTML fit for a page that is trusted.

    Tables, text and pictures are kept, without styles. Where there is more, such as scripts, all of it goes into a frame
    that runs them under an origin of its own: it can reach neither the page nor its cookies.
    """
    cleaner = _Cleaner()
    cleaner.feed(text)
    cleaner.close()
    return _IFRAME.format(html.escape(text)) if cleaner.active else cleaner.text()


def preformatted(text: str, colour: str = "") -> str:
    """Output as a block."""
    style = "font-family:monospace" + (f";color:{colour}" if colour else "")
    return f'<pre style="{style}">{html.escape(text)}</pre>' if text else ""
