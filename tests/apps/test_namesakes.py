"""Two projects whose modules have the same names, as those of a project template, in one account."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.apps

_DJANGO = """
import django
from django.conf import settings

options = NAME and {"name": NAME}
settings.configure(
    INSTALLED_APPS=["jetstream_sync.django"],
    ROOT_URLCONF="config.urls",
    JETSTREAM={"servers": URL, **options},
)
django.setup()
from jetstream_sync.django import worker
"""
_FLASK = """
from flask import Flask
from jetstream_sync.flask import JetStream

app = Flask("app")
app.config["JETSTREAM"] = {"servers": URL, **(NAME and {"name": NAME})}
worker = JetStream(app).worker
"""
_PLAIN = """
from jetstream_sync.workers import Worker

worker = Worker(URL, **(NAME and {"name": NAME}))
"""
_TASK = """
import sys

@worker.task(name="send")
def send(number: int) -> None:
    sys.stdout.write(f"PROJECT {number}\\n")  # at once, from several threads
"""
_HINTS = {
    "django": 'JETSTREAM = {"name": "shop"} in the settings',
    "flask": 'app.config["JETSTREAM"] = {"name": "shop"}',
    "plain": 'Worker(name="shop")',
}
_HEADS = {"django": _DJANGO, "flask": _FLASK, "plain": _PLAIN}


def run(folder: Path, code: str) -> tuple[int, str]:
    """Run a statement in the folder of a project; return the exit status and the output."""
    command = [sys.executable, "-c", code]
    found = subprocess.run(
        command, check=False, cwd=folder, capture_output=True, text=True, timeout=60
    )
    return found.returncode, found.stdout + found.stderr


@pytest.mark.parametrize("kind", ["plain", "django", "flask"])
def test_two_projects_with_the_same_packages(fresh_server, tmp_path, kind):
    """A task is refused where it is defined until its project has a name; then each runs its own calls only."""

    def write(project: str, name: dict[str, str] | str) -> Path:
        package = tmp_path / project / "config"
        package.mkdir(parents=True, exist_ok=True)
        code = f"URL = {fresh_server.url!r}\nNAME = {name!r}\n{_HEADS[kind]}{_TASK}"
        (package / "__init__.py").touch()
        (package / "workers.py").write_text(code.replace("PROJECT", project))
        return package.parent

    for project in ("shop", "crm"):
        status, output = run(write(project, {}), "import config.workers")
        assert status == 1
        assert output.splitlines()[-1].startswith("jetstream_sync.errors.InvalidOptionError")
        assert _HINTS[kind] in output
    folders = {project: write(project, project) for project in ("shop", "crm")}
    send = "from config.workers import send\nfor number in range(5): send.delay(number)"
    for folder in folders.values():
        assert run(folder, send) == (0, "")
    for project, folder in folders.items():
        status, output = run(folder, "from config.workers import worker\nworker.run(burst=True)")
        assert status == 0, output
        lines = [line.split() for line in output.splitlines() if line.endswith(tuple("01234"))]
        assert sorted(lines) == [[project, str(number)] for number in range(5)]


@pytest.mark.parametrize("urls", ["__name__", "None"])
def test_a_project_is_one_program_for_web_processes_and_workers(fresh_server, tmp_path, urls):
    """Its worker is a script, and its web processes import the same file, whichever code asks for the worker first."""
    code = f"""
import sys
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["jetstream_sync.django"],
    ROOT_URLCONF={urls},
    JETSTREAM={{"servers": {fresh_server.url!r}, "name": "shop"}},
)
django.setup()
from jetstream_sync.django import worker
from jetstream_sync.django.workers import find_worker

@worker.task(name="send")
def send(number: int) -> None:
    sys.stdout.write(f"sent {{number}}\\n")

if __name__ == "__main__":
    sys.exit(find_worker().run(burst=True))
"""
    (tmp_path / "manage.py").write_text(code)
    assert run(tmp_path, "import manage; manage.send.delay(7)") == (0, "")
    command = [sys.executable, "manage.py"]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "sent 7\n"), done.stderr
