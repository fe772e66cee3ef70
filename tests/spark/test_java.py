"""Finding Java, and the error message when it is missing."""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fix_spark import need_java, spark_environment

from jetstream_sync.errors import Error
from jetstream_sync.spark.java import OLDEST_JAVA, JavaNotFoundError, find_java

pytestmark = pytest.mark.spark


def installation(folder: Path, release: str | None) -> Path:
    """Create files that look like a Java installation."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    if release is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="N.N."\nJAVA_VERSION="{release}"\n')
    return program


@pytest.mark.parametrize(
    ("release", "version"),
    [("17.0.15", 17), ("21", 21), ("25-ea", 25), (None, None)],
)
def test_java_home_comes_first(tmp_path: Path, release: str | None, version: int | None) -> None:
    """The program below JAVA_HOME takes precedence over PATH, and its version comes from its release file."""
    program = installation(tmp_path / "jdk", release)
    installation(tmp_path / "other", "99")
    found = find_java({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": str(tmp_path / "other" / "bin")})
    assert (found.path, found.version) == (program, version)


def test_a_link_on_path_leads_to_the_installation(tmp_path: Path) -> None:
    """Without JAVA_HOME the java on PATH is used, also if it is a symbolic link as in distributions."""
    program = installation(tmp_path / "jdk", "21.0.1")
    link = tmp_path / "bin" / "java"
    link.parent.mkdir()
    link.symlink_to(program)
    found = find_java({"JAVA_HOME": "", "PATH": str(link.parent)})
    assert (found.path, found.version) == (link, 21)


def test_no_java_anywhere(tmp_path: Path) -> None:
    """The error says where the search looked, and how to install Java on Debian, Fedora and macOS."""
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"PATH": str(tmp_path)})
    text = str(caught.value)
    assert "JAVA_HOME is not set" in text
    assert "on PATH" in text
    for system, command in (("Debian", "apt "), ("Fedora", "dnf "), ("macOS", "brew ")):
        assert system in text
        assert command in text
    assert "\n" not in text


def test_java_home_without_java(tmp_path: Path) -> None:
    """A JAVA_HOME without Java is an error even if there is a java on PATH, since Spark would use JAVA_HOME."""
    installation(tmp_path / "jdk", "21")
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(JavaNotFoundError, match=re.escape(f"JAVA_HOME is {nowhere}")):
        find_java({"JAVA_HOME": nowhere, "PATH": str(tmp_path / "jdk" / "bin")})


@pytest.mark.parametrize(("release", "version"), [("1.8.0_392", 8), ("11.0.2", 11), ("16", 16)])
def test_an_old_java(tmp_path: Path, release: str, version: int) -> None:
    """A Java that is too old for Spark is an error that names its version."""
    program = installation(tmp_path / "jdk", release)
    with pytest.raises(JavaNotFoundError, match=f"{re.escape(str(program))} is Java {version};"):
        find_java({"JAVA_HOME": str(tmp_path / "jdk")})


def test_the_error_can_be_pickled(tmp_path: Path) -> None:
    """The error is an `Error` of the package, and keeps its text when it is pickled."""
    with pytest.raises(Error) as caught:
        find_java({"PATH": str(tmp_path)})
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_the_java_of_this_machine() -> None:
    """The Java found on this machine runs, and has the version from its release file."""
    need_java()
    found = find_java()
    said = subprocess.run([found.path, "-version"], capture_output=True, text=True, check=True)
    version = re.search(r'version "(\d+)', said.stderr)
    assert version is not None
    assert found.version in (int(version[1]), None)
    assert int(version[1]) >= OLDEST_JAVA


@pytest.mark.parametrize("home", [True, False])
def test_spark_searches_the_same_places(tmp_path: Path, home: bool) -> None:
    """If no Java is found, starting Spark fails, too."""
    # PATH has everything that the start scripts call, except Java.
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "env", "uname", "mktemp", "grep", "sed", "cat"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    variables = spark_environment() | {"PATH": str(tools)}
    variables.pop("JAVA_HOME", None)
    if home:
        variables["JAVA_HOME"] = str(tmp_path)
    with pytest.raises(JavaNotFoundError):
        find_java(variables)
    code = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert "JAVA_GATEWAY_EXITED" in done.stderr
    assert "apt" not in done.stderr


def test_imports_need_no_java(tmp_path: Path) -> None:
    """The package and its Spark part can be imported without Java and PySpark."""
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        "import jetstream_sync.spark, jetstream_sync.server\n"
        "from jetstream_sync.spark import ReadOptions\n"
        "from jetstream_sync.spark.java import find_java\n"
    )
    variables = spark_environment() | {"PATH": str(tmp_path), "JAVA_HOME": ""}
    subprocess.run([sys.executable, "-c", code], env=variables, check=True, timeout=20)
