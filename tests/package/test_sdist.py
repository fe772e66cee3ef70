"""The source distribution: built without network and compiler, and tested from its own files."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution, and unpack it."""
    folder = tmp_path_factory.mktemp("sdist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", folder]
    subprocess.run([*build, ROOT], check=True, env=os.environ | {"PIP_NO_INDEX": "1"})
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        members.extractall(folder)
    (path,) = (path for path in folder.iterdir() if path.is_dir())
    return path


def test_a_wheel_is_built_without_network_and_compiler(unpacked, tmp_path):
    """The wheel of a machine without a C compiler has no extension, and works."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    without = os.environ | {"CC": "/bin/false", "PIP_NO_INDEX": "1"}
    subprocess.run([*pip, "--wheel-dir", tmp_path, unpacked], check=True, env=without)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run(
        [sys.executable, ROOT / "tests" / "check_wheel.py"],
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(wheel), "JETSTREAM_SYNC_SPEEDUPS": "0"},
    )


def test_the_tests_pass_from_the_source_distribution(unpacked):
    """Tests and pages are complete; ``python -m pytest`` says that it runs without the extension."""
    tests = ["tests/unit/api", "tests/unit/protocol", "tests/server/test_fetch.py"]
    tests += ["tests/test_install.py", "tests/test_layers.py", "tests/test_spark_reference.py"]
    command = [sys.executable, "-m", "pytest", "-m", "not full and not soak", *tests]
    result = subprocess.run(
        [*command, "-n", "2", "-o", "faulthandler_timeout=500", "--timeout", "300"],
        capture_output=True,
        text=True,
        check=False,
        cwd=unpacked,
        env={name: value for name, value in os.environ.items() if name != "TOX_ENV_NAME"},
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert f"tested: {unpacked / 'jetstream_sync'}, without the C extension" in result.stdout
