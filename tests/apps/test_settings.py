"""The application of docs/tutorial/buckets: its settings change while it runs."""

from __future__ import annotations

import pytest
from fixtures.apps import Program, copied, free_port, http
from fixtures.threads import wait_until

import jetstream_sync

# Other programs take some time to start and to stop.
pytestmark = [pytest.mark.apps, pytest.mark.timeout(110)]


def test_settings_change_while_the_application_runs(fresh_server, tmp_path):
    """The page follows the bucket: a default, a value, another one, and the default after a deletion."""
    port = free_port()
    command = ["-m", "flask", "--app", "web", "run", "--port", str(port)]
    with (
        Program(command, fresh_server.url, copied("settings", tmp_path)) as program,
        jetstream_sync.connect(fresh_server.url) as nc,
    ):
        program.wait_for("Running on")

        def shown() -> object:
            return http("GET", f"http://127.0.0.1:{port}/")[1].get("text")

        assert shown() == "Hello!"
        kv = nc.jetstream().key_value("CONFIG")
        kv.put("shop.welcome", b"Good morning!")
        wait_until(lambda: shown() == "Good morning!")
        kv.put("shop.open", b"no")
        wait_until(lambda: shown() == "Closed.")
        kv.delete("shop.open")
        kv.delete("shop.welcome")
        wait_until(lambda: shown() == "Hello!")
