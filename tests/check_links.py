"""
Check the links within built HTML pages: ``python tests/check_links.py FOLDER``.

Sphinx resolves its own references. This finds links to files and headings that it does not know,
such as those of raw HTML and of ``html_theme`` options. Links to other sites are not checked: that
needs a network, and fails when they are down.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

__all__ = ["broken_links"]


class _Page(HTMLParser):
    """The links of a page, and the ids that links can point to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag links to, and its id."""
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.ids.add(value or "")
            elif value and name in {"href", "src"} and tag in {"a", "img", "link", "script"}:
                self.links.append(value)


def broken_links(folder: Path) -> list[str]:
    """Return a line for each link within the folder whose file or heading does not exist."""
    pages = {path.resolve(): _Page(path) for path in sorted(folder.rglob("*.html"))}
    if not pages:
        return [f"{folder}: contains no HTML page"]
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            name, fragment = urldefrag(link)
            target = (path.parent / unquote(urlsplit(name).path)).resolve() if name else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                broken.append(f"{path.name}: {link}: no such file")
            elif target in pages and unquote(fragment) not in pages[target].ids:
                broken.append(f"{path.name}: {link}: no such heading")
    return broken


if __name__ == "__main__":
    found = broken_links(Path(sys.argv[1]))
    sys.exit("\n".join(found) if found else 0)
