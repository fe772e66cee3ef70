"""
Check the types that users see: ``python tests/check_types.py``.

1. mypy checks the code on the pages, each page as one program, and the programs in docs/howto/apps.
   Pages leave out annotations and tests for ``None``, which would hide what they show.
2. pyright --verifytypes reports public names whose type is unknown, or left to inference, which
   differs from one type checker to another. PySpark declares its own types as partial, so
   its classes are unknown as base classes; only that is accepted.

A block that is wrong on purpose says so in a comment right above it: ``.. not checked: <reason>``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pages import ROOT, blocks, documents

__all__ = ["extract_pages", "untyped_names"]

APPS = ROOT / "docs" / "howto" / "apps"
_FROM_PYSPARK = re.compile(r"Type of (base class|metaclass) unknown")


def extract_pages(pages: list[Path], folder: Path) -> list[Path]:
    """Write the Python code of each page to a file; its lines keep their numbers."""
    programs = []
    for page in pages:
        lines: list[str] = []
        for block in blocks(page, for_types=True):
            if block.language == "python":
                lines += [""] * (block.line - 1 - len(lines)) + block.code.rstrip().split("\n")
        if lines:
            name = re.sub(r"\W", "_", str(page.with_suffix("").relative_to(ROOT)))
            programs.append(folder / f"{name}.py")
            programs[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return programs


def check_pages() -> int:
    """Run mypy on the pages and programs; return its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        programs = extract_pages(documents(), Path(folder))
        for path in sorted(APPS.rglob("*.py")):
            code = path.read_text(encoding="utf-8")
            if "from ." not in code:  # the modules of a Django app need their package
                name = re.sub(r"\W", "_", str(path.with_suffix("").relative_to(APPS)))
                programs.append(Path(folder, f"apps_{name}.py"))
                programs[-1].write_text(code, encoding="utf-8")
        command = [
            *(sys.executable, "-m", "mypy", "--config-file", "", "--check-untyped-defs"),
            *("--no-strict-optional", "--allow-redefinition", "--enable-error-code", "deprecated"),
            *("--disable-error-code", "import-untyped", "--disable-error-code", "import-not-found"),
            *("--disable-error-code", "var-annotated"),
        ]
        return subprocess.run([*command, *programs], check=False).returncode


def untyped_names(report: str) -> list[str]:
    """Return a line for each public name without a known type in a report of pyright."""
    found = []
    symbols = json.loads(report)["typeCompleteness"]["symbols"]
    if not symbols:
        return ["jetstream_sync: pyright found no names; is the package installed?"]
    for symbol in symbols:
        if not symbol["isExported"] or (symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]):
            continue
        texts = [item["message"].splitlines()[0] for item in symbol["diagnostics"]]
        texts = [text for text in texts if not _FROM_PYSPARK.fullmatch(text)]
        # A class that is known in part only because of its base class is listed with that one.
        found += [f"{symbol['name']}: {text}" for text in texts if "partially" not in text]
    return found


def check_names() -> list[str]:
    """Run pyright --verifytypes; return a line for each name without a known type."""
    command = [
        *(sys.executable, "-m", "pyright", "--pythonpath", sys.executable),
        *("--verifytypes", "jetstream_sync", "--ignoreexternal", "--outputjson"),
    ]
    report = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout
    return untyped_names(report)


if __name__ == "__main__":
    status = check_pages()
    found = check_names()
    sys.exit("\n".join(found) if found else status)
