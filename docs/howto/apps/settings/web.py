"""A shop whose settings change while it runs: a watch keeps them up to date."""

import functools
import os

from flask import Flask, jsonify

import jetstream_sync

SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")

app = Flask(__name__)


class Settings:
    """The settings of the shop; a thread of the watch keeps them up to date."""

    def __init__(self, kv):
        self._values = {}
        self._watch = kv.watch("shop.>", cb=self._change)
        self._watch.wait_current(timeout=10.0)

    def _change(self, entry):
        if entry.has_value:
            self._values[entry.key] = entry.value.decode()
        else:
            self._values.pop(entry.key, None)

    def get(self, key, default):
        """Return a setting, or a default if it is not set."""
        return self._values.get(key, default)


@functools.cache
def settings():
    """Return the settings of this process; the first request starts the watch."""
    nc = jetstream_sync.shared_connection(SERVERS, name="shop")
    return Settings(nc.jetstream().create_key_value(bucket="CONFIG", history=5))


@app.get("/")
def welcome():
    """Show a text that depends on the settings, without a request to the server."""
    current = settings()
    open_ = current.get("shop.open", "yes") == "yes"
    return jsonify(text=current.get("shop.welcome", "Hello!") if open_ else "Closed.")
