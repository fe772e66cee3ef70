"""What an import needs: no module of POSIX, and a package of an extra only where it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Modules of the standard library that Windows does not have. (Not ``posix``, which ``shutil`` takes from
#: ``os.name``.)
_POSIX_ONLY = "crypt fcntl grp nis ossaudiodev pty pwd readline resource spwd syslog termios tty"
#: Names in other modules that Windows does not have.
_POSIX_NAMES = """
for module, names in {
    "os": "fork forkpty register_at_fork getuid geteuid getgid getppgid getpgid killpg setsid sched_getaffinity",
    "signal": "SIGALRM SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGSTOP SIGUSR1 SIGUSR2 SIGWINCH pthread_sigmask",
    "socket": "AF_UNIX socketpair",
}.items():
    for name in names.split():
        vars(__import__(module)).pop(name, None)
"""

#: Names of packages -> an exception for each import of them, as if they were not installed.
_HIDE = """
import sys

class Hidden:
    def __init__(self, *names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def hide(*names):
    for name in names:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Hidden(*names))
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the function `hide`, from where the installed package is found."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", _HIDE + program],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
        timeout=60,
    )


#: What a program imports. (Not the integrations with frameworks, which import their framework.)
_PARTS = (
    "jetstream_sync, jetstream_sync.server, jetstream_sync.workers, jetstream_sync.spark"
    ", jetstream_sync.filesystem, jetstream_sync.cli.main"
)


def test_an_import_needs_nothing_of_posix():
    """On Windows the package can be imported, although it has not been tried there."""
    # The standard library imports its own parts first; it has other code for Windows.
    library = (
        "import multiprocessing.connection, multiprocessing.process, shutil, subprocess, tempfile"
    )
    result = run(
        f"{library}, http.server, logging.handlers\nhide(*{_POSIX_ONLY.split()!r})\n{_POSIX_NAMES}\n"
        f"import {_PARTS}\nprint('imported')"
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "imported\n", "")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("statement", "package", "extra"),
    [
        ("import jetstream_sync.flask", "flask", "flask"),
        ("import jetstream_sync.flask", "click", "flask"),
        ("import jetstream_sync.django", "django", "django"),
        ("import jetstream_sync.django.cache", "django", "django"),
        ("import jetstream_sync.filesystem", "fsspec", "fsspec"),
        ("from jetstream_sync.spark import JetStreamDataSource", "pyspark", "spark"),
        ("from jetstream_sync.spark import ProgressListener", "pyspark", "spark"),
        ("import jetstream_sync.spark as s; s.register(None)", "pyspark", "spark"),
    ],
)
def test_a_missing_package_is_reported_with_its_extra(statement, package, extra):
    """The error is a `ModuleNotFoundError` for the package, and its text has the command."""
    result = run(
        f"hide({package!r})\ntry:\n    {statement}\nexcept ModuleNotFoundError as error:\n"
        "    print(error.name, error)"
    )
    assert result.stderr == ""
    missing = (
        f"{package} the extra {extra!r} is not installed (no module {package!r}): pip install "
    )
    assert result.stdout.startswith(missing)
    assert f"[{extra}]'" in result.stdout


def test_a_missing_module_of_an_installed_package_is_not_a_missing_extra():
    """An older version of a package lacks a module: its name is reported, and no extra."""
    result = run(
        "from jetstream_sync.version import needs_extra\n"
        "with needs_extra('spark'):\n    import xml.nothing"
    )
    assert result.stderr.endswith("ModuleNotFoundError: No module named 'xml.nothing'\n")
