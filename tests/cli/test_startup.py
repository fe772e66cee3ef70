"""The processor time until a command answers, in multiples of that of an interpreter that does nothing."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.threads import wait_until

from jetstream_sync.server import NatsServer

JSM = str(Path(sys.executable).with_name("jsm"))
RUNS = 7
#: The largest multiple of each command; `{url}` is a server.
LIMITS = {
    "--help": 7,
    "stream add --help": 12,
    "consumer add --help": 12,
    "-s {url} stream ls": 15,
}


def processor_time(*command: str) -> float:
    """Return the least processor time of several runs, in seconds."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "XDG_CONFIG_HOME": os.devnull}
    times = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(times)


def multiples(url: str) -> dict[str, float]:
    """Return the processor time of each command in multiples of that of Python."""
    python = processor_time(sys.executable, "-c", "pass")
    return {words: processor_time(JSM, *words.format(url=url).split()) / python for words in LIMITS}


@pytest.mark.full
@pytest.mark.timeout(180)
def test_commands_start_fast():
    """No command takes more than its multiple; a busy machine may need a second run."""
    with NatsServer() as server:

        def is_fast() -> bool:
            found = multiples(server.url)
            return all(found[words] <= limit for words, limit in LIMITS.items())

        wait_until(is_fast, 60)


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        ("--help", "jetstream_sync.client jetstream_sync.options orjson rich questionary"),
        ("stream add --help", "jetstream_sync.client jetstream_sync.jetstream rich questionary"),
        ("consumer ls --help", "jetstream_sync.client jetstream_sync.jetstream rich questionary"),
    ],
)
def test_help_imports_only_what_it_needs(words, absent):
    """The help of a command imports neither the client nor what draws tables and prompts."""
    code = (
        "import sys, atexit, jetstream_sync_jsm as program;"
        "atexit.register(lambda: print('MODULES', *sys.modules));"
        f"sys.argv = ['jsm', *{words.split()!r}]; program.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.rpartition("MODULES ")[2].split()
    assert "jetstream_sync.cli.main" in modules
    assert not set(absent.split()) & set(modules)
