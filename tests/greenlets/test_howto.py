"""The code in ``docs/howto/threads.rst`` does what the page says."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import gevent
import pytest
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync.server import NatsServer

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "threads.rst"
_BLOCK = re.compile(
    r"^\.\. code-block:: python\n   :caption: (?P<name>\S+)\n(?P<code>(?:\n|   .*\n)+)",
    re.MULTILINE,
)


def write_code(folder: Path, server: NatsServer) -> None:
    """Write the files of the page, for a server that is somewhere else."""
    for match in _BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        code = re.sub("^   ", "", match["code"], flags=re.MULTILINE)
        assert "nats://127.0.0.1:4222" in code
        code = code.replace("nats://127.0.0.1:4222", server.url)
        (folder / match["name"]).write_text(code, encoding="utf-8")


def test_the_script_runs(fresh_server, tmp_path):
    """A hundred greenlets publish, four share the work, and it prints how much there was."""
    write_code(tmp_path, fresh_server)
    done = subprocess.run(
        [sys.executable, tmp_path / "orders.py"],
        capture_output=True,
        text=True,
        timeout=40 * SCALE,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == "100\n"


@pytest.mark.parametrize("preload", [["--preload"], []], ids=["preload", "no preload"])
def test_gunicorn_runs_the_application(fresh_server, tmp_path, preload):
    """Many requests at a time go through one connection per worker, and each gets its own reply."""
    write_code(tmp_path, fresh_server)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with jetstream_sync.connect(fresh_server.url) as nc:
        stream = nc.jetstream().create_stream(name="ORDERS", subjects=["ORDERS.*"])
        # A worker that is told to stop while it is still starting does not hear it, and is killed then.
        options = ["-k", "gevent", "--workers", "2", "--graceful-timeout", "3", *preload]
        places = ["--bind", f"127.0.0.1:{port}", "--chdir", str(tmp_path)]
        gunicorn = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options, *places, "app:app"],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            responses = [gevent.spawn(ask, port, number) for number in range(100)]
            gevent.joinall(responses, timeout=40 * SCALE)
            seqs = [response.get(block=False) for response in responses]
        finally:
            gunicorn.send_signal(signal.SIGTERM)
            _, said = gunicorn.communicate(timeout=30 * SCALE)
        assert sorted(seqs) == list(range(1, 101))
        for number, seq in enumerate(seqs):
            assert stream.get_msg(seq).data == b"order-%d" % number
    assert gunicorn.returncode == 0
    assert "Traceback" not in said


def ask(port: int, number: int) -> int:
    """Ask the application, which may not have started yet."""

    def reply() -> bytes | None:
        try:
            url = f"http://127.0.0.1:{port}/order-{number}"
            with urllib.request.urlopen(url, timeout=30 * SCALE) as response:
                return response.read()
        except ConnectionRefusedError:
            return None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                return None
            raise

    return int(wait_until(reply, 30))
