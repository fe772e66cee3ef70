"""Each extra alone, in a new environment: what it installs is enough for its smallest example."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

#: Extras -> a program that uses what they install; ``{url}`` is a server.
EXAMPLES = {
    "": """
        import jetstream_sync
        with jetstream_sync.connect({url!r}) as nc:
            nc.jetstream().account_info()
        """,
    "server": """
        from jetstream_sync.server import NatsServer
        with NatsServer() as server:
            print(server.version)
        """,
    "nkeys": """
        import jetstream_sync
        seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
        with jetstream_sync.connect({url!r}, nkeys_seed_str=seed) as nc:
            nc.flush()
        """,
    "websocket": """
        import jetstream_sync
        try:
            jetstream_sync.connect({url!r}.replace("nats://", "ws://"), connect_timeout=2)
        except jetstream_sync.errors.InvalidOptionError:
            raise
        except jetstream_sync.errors.Error:
            pass  # the server has no WebSocket port
        """,
    "cli": """
        import subprocess, sys
        from pathlib import Path
        jsm = Path(sys.executable).with_name("jsm")
        subprocess.run([jsm, "-s", {url!r}, "stream", "ls"], check=True)
        """,
    "cli,top": """
        import subprocess, sys
        from pathlib import Path
        from jetstream_sync.cli.top import app
        jsm = Path(sys.executable).with_name("jsm")
        subprocess.run([jsm, "-s", {url!r}, "top", "--once"], check=True)
        """,
    "metrics": """
        from prometheus_client import CollectorRegistry, generate_latest
        from jetstream_sync.workers import Worker, WorkerCollector
        registry = CollectorRegistry()
        registry.register(WorkerCollector(Worker({url!r})))
        generate_latest(registry)
        """,
    "otel": """
        from opentelemetry import trace
        from jetstream_sync.workers import Worker
        Worker({url!r}, name="traced")
        """,
    "django": """
        import django
        from django.conf import settings
        settings.configure(
            INSTALLED_APPS=["jetstream_sync.django"], JETSTREAM=dict(servers={url!r}, name="shop")
        )
        django.setup()
        from jetstream_sync.django import jetstream
        jetstream().account_info()
        """,
    "flask": """
        from flask import Flask
        from jetstream_sync.flask import JetStream
        app = Flask("shop")
        app.config["JETSTREAM"] = dict(servers={url!r}, name="shop")
        js = JetStream(app)
        with app.app_context():
            js.jetstream().account_info()
        """,
    "fsspec": """
        import fsspec
        import jetstream_sync
        with jetstream_sync.connect({url!r}) as nc:
            nc.jetstream().create_object_store(bucket="extra")
            files = fsspec.filesystem("jetstream", servers={url!r})
            with files.open("extra/name", "wb") as file:
                file.write(b"data")
            assert files.cat("extra/name") == b"data"
        """,
    "spark": """
        import jetstream_sync
        from jetstream_sync.spark import JetStreamDataSource, plan_ranges
        assert JetStreamDataSource.name() == "jetstream"
        with jetstream_sync.connect({url!r}) as nc:
            nc.jetstream().create_stream(name="EXTRA", subjects=["extra"])
        assert plan_ranges(dict(servers={url!r}, stream="EXTRA")) == []
        """,
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, as a user without an index would."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-index", "--wheel-dir", folder, ROOT], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.parametrize("extras", EXAMPLES)
def test_an_extra_alone_is_enough(extras, wheel, nats_server, tmp_path):
    """In an environment with one extra, its smallest example runs."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = tmp_path / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--prefer-binary"]
    pins = ["-c", ROOT / "tests" / "constraints.txt"]
    named = f"{wheel}[{extras}]" if extras else str(wheel)
    subprocess.run([*pip, *pins, named], check=True)
    program = textwrap.dedent(EXAMPLES[extras]).format(url=nats_server.url)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-c", program], check=True, cwd=tmp_path, env=clean, timeout=120)
