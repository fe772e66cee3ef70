"""Find the code blocks of README.md and of the pages under docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DOCUMENTED_URL", "ROOT", "Block", "blocks", "documents"]

ROOT = Path(__file__).parents[1]
DOCUMENTED_URL = "nats://127.0.0.1:4222"

_PAGE_BLOCK = re.compile(
    r"^(?P<indent> *)\.\. code-block:: (?P<language>[\w-]+)\n"
    r"(?:(?P=indent) +:.*\n)*\n*"
    r"(?P<code>(?:(?:(?P=indent) +\S.*)?\n)+)",
    re.MULTILINE,
)
_README_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
_LEFT_OUT = re.compile(r"(?:\.\.|<!--) not (?P<what>run|checked): \S.*\s*\Z")


@dataclass(frozen=True)
class Block:
    """A code block and the line of its document where the code begins."""

    language: str
    code: str
    line: int


def documents() -> list[Path]:
    """Return the README and all pages."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.rst"))]


def blocks(path: Path, *, for_types: bool = False) -> Iterator[Block]:
    """
    Yield the blocks of a document, except those with a comment that they are not run.

    With `for_types`, those with a comment that their types are not checked are left out as well.
    """
    text = path.read_text(encoding="utf-8")
    pattern = _README_BLOCK if path.suffix == ".md" else _PAGE_BLOCK
    for match in pattern.finditer(text):
        left_out = _LEFT_OUT.search(text[: match.start()])
        if left_out and (for_types or left_out["what"] == "run"):
            continue
        code = match["code"]
        indent = min(len(line) - len(line.lstrip()) for line in code.splitlines() if line.strip())
        yield Block(
            match["language"],
            "\n".join(line[indent:] for line in code.splitlines()) + "\n",
            text.count("\n", 0, match.start("code")) + 1,
        )
