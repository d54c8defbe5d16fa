"""Puts SVG pictures into the page itself, where they take the theme's colours in light and dark.

In Markdown they are ordinary images, so they also show where the pages are read without the site.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes


def _inline(app: Any, doctree: nodes.document, name: str) -> None:
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        if image["uri"].endswith(".svg") and "://" not in image["uri"]:
            text = (Path(app.srcdir) / image["uri"]).read_text(encoding="utf-8")
            image.replace_self(nodes.raw(text, text, format="html"))


def setup(app: Any) -> dict[str, Any]:
    app.connect("doctree-resolved", _inline)
    return {"version": "1", "parallel_read_safe": True}
