"""Fixtures come from one file per concern."""

import signal

# One that imports another comes after it.
pytest_plugins = [
    "fixtures.collection",
    "fixtures.gevent",
    "fixtures.hypothesis",
    "fixtures.jwt",
    "fixtures.threads",
    "fixtures.server",
    "fixtures.faults",
    "fixtures.jsm",
    "fixtures.order",
    "fixtures.orders",
    "fixtures.reruns",
    "fixtures.spark",
    "fixtures.spark_streams",
    "fixtures.tls",
]

# A shell that starts the tests in the background makes them ignore Ctrl-C, also in their children.
# Tests of Ctrl-C need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
