"""
What to say when there is no Java: Spark runs in a JVM, and says only that its gateway has exited.

The search is the one of Spark's own start script: ``JAVA_HOME`` when it is set, else ``PATH``.
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

__all__ = ["OLDEST_JAVA", "Java", "JavaNotFoundError", "find_java"]

#: Spark 4 needs this version of Java, or a newer one.
OLDEST_JAVA: Final = 17

_INSTALL: Final = (
    "install one with 'apt install default-jre-headless' (Debian, Ubuntu), "
    "'dnf install java-headless' (Fedora), or 'brew install openjdk@21' and "
    'export JAVA_HOME="$(brew --prefix openjdk@21)/libexec/openjdk.jdk/Contents/Home" (macOS)'
)
_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)


class JavaNotFoundError(Error):
    """
    Spark needs Java, and there is none, or too old a one; the message says what to do.

    Args:
        found: what was looked for, and what is there instead.

    """

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found

    def __str__(self) -> str:
        return f"Spark needs Java {OLDEST_JAVA} or newer: {self.found}; {_INSTALL}"


@dataclass(frozen=True, kw_only=True)
class Java:
    """
    The Java that Spark would start.

    Attributes:
        path: the program.
        version: its main version; ``None`` when its installation does not say.

    """

    path: Path
    version: int | None


def find_java(variables: Mapping[str, str] | None = None) -> Java:
    """
    Find the Java that Spark would start.

    Nothing is started: the version is what the installation's ``release`` file says.

    Args:
        variables: the environment variables to go by; ``None`` for those of this process.

    Raises:
        JavaNotFoundError: there is none, or it is too old for Spark.

    """
    variables = os.environ if variables is None else variables
    home = variables.get("JAVA_HOME")
    if home:
        path, where = Path(home, "bin", "java"), f"JAVA_HOME is {home}"
        if not os.access(path, os.X_OK):
            raise JavaNotFoundError(f"{where}, but there is no program {path}")
    else:
        found = shutil.which("java", path=variables.get("PATH", os.defpath))
        if found is None:
            raise JavaNotFoundError("JAVA_HOME is not set, and there is no program java on PATH")
        path, where = Path(found), "JAVA_HOME is not set"
    java = Java(path=path, version=_version(path))
    if java.version is not None and java.version < OLDEST_JAVA:
        raise JavaNotFoundError(f"{where}, and {path} is Java {java.version}")
    return java


def _version(path: Path) -> int | None:
    # A Linux distribution links /usr/bin/java to the installation.
    release = path.resolve().parent.parent / "release"
    try:
        said = _VERSION.search(release.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return None if said is None else int(said[1])
