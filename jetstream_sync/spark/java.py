"""
Find the Java that Spark would start, and explain how to install a missing one.

Without Java, PySpark only reports that its gateway process has exited. The search is that of Spark's own
start script: ``JAVA_HOME`` if it is set, else ``PATH``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import Error

#: The oldest Java version that Spark 4 supports.
OLDEST_JAVA: Final = 17

_INSTALL: Final = (
    "install one with 'apt install default-jre-headless' (Debian, Ubuntu), "
    "'dnf install java-headless' (Fedora), or 'brew install openjdk@21' and "
    'export JAVA_HOME="$(brew --prefix openjdk@21)/libexec/openjdk.jdk/Contents/Home" (macOS)'
)
_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)


class JavaNotFoundError(Error):
    """
    Spark needs Java, and none was found or it is too old; the message says how to install it.

    Args:
        found: where the search looked, and what it found.

    """

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found

    def __str__(self) -> str:
        return f"Spark needs Java {OLDEST_JAVA} or newer: {self.found}; {_INSTALL}"


@dataclass(frozen=True, kw_only=True)
class Java:
    """The Java that Spark would start."""

    path: Path
    version: int | None


def find_java(variables: Mapping[str, str] | None = None) -> Java:
    """
    Return the Java that Spark would start.

    No process is started: the version comes from the ``release`` file of the installation.
    """
    variables = os.environ if variables is None else variables
    home = variables.get("JAVA_HOME")
    if home:
        path, where = Path(home, "bin", "java"), f"JAVA_HOME is {home}"
        if not os.access(path, os.X_OK):
            raise JavaNotFoundError(f"{where}, but {path} is not an executable file")
    else:
        found = shutil.which("java", path=variables.get("PATH", os.defpath))
        if found is None:
            raise JavaNotFoundError("JAVA_HOME is not set, and there is no java on PATH")
        path, where = Path(found), "JAVA_HOME is not set"
    java = Java(path=path, version=_version(path))
    if java.version is not None and java.version < OLDEST_JAVA:
        raise JavaNotFoundError(f"{where}, and {path} is Java {java.version}")
    return java


def _version(path: Path) -> int | None:
    # Linux distributions make /usr/bin/java a symbolic link into the installation.
    release = path.resolve().parent.parent / "release"
    try:
        match = _VERSION.search(release.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return None if match is None else int(match[1])
