"""HTML for notebooks. HTML from a sandbox is untrusted: it must not run in the page of the notebook."""

from __future__ import annotations

import html
import re

# Elements that cleaning would remove, and with them the meaning: scripts, drawings, forms, media.
_NEEDS_FRAME = re.compile(r"<(script|iframe|object|embed|svg|canvas|math|form|input|button|audio|video)\b", re.IGNORECASE)
_IFRAME = (
    '<iframe sandbox="allow-scripts" referrerpolicy="no-referrer" '
    'style="width:100%;height:480px;border:0" srcdoc="{}"></iframe>'
)


def _allowed(tag: str, attribute: str, value: str) -> str | None:
    """Drops what would load something from the network by itself."""
    if tag == "img" and attribute == "src" and not re.match(r"data:image/(png|jpeg|gif|webp);", value):
        return None
    if tag == "a" and attribute == "href" and value.lower().startswith("data:"):
        return None
    return value


def untrusted(text: str) -> str:
    """HTML from a sandbox, made safe to show in a trusted page.

    Tables, text and embedded pictures are kept, without styles and scripts. HTML that needs more goes into a sandboxed
    frame as a whole: its scripts run under an opaque origin and cannot reach the page or its cookies.
    """
    if _NEEDS_FRAME.search(text):
        return _IFRAME.format(html.escape(text))
    import nh3  # only notebooks need it

    return nh3.clean(
        text,
        attributes={**nh3.ALLOWED_ATTRIBUTES, "*": {"class", "title", "lang"}, "table": {"border"}},
        attribute_filter=_allowed,
        url_schemes={"http", "https", "mailto", "data"},
    )


def preformatted(text: str, color: str = "") -> str:
    """Output as a `<pre>` block; empty for no output."""
    style = "font-family:monospace" + (f";color:{color}" if color else "")
    return f'<pre style="{style}">{html.escape(text)}</pre>' if text else ""
