"""Fixtures come from one file per concern."""

import signal

# One that imports another comes after it.
pytest_plugins = [
    "fix_collection",
    "fix_gevent",
    "fix_hypothesis",
    "fix_jwt",
    "fix_threads",
    "fix_server",
    "fix_faults",
    "fix_jsm",
    "fix_order",
    "fix_orders",
    "fix_raw",
    "fix_reruns",
    "fix_spark",
    "fix_spark_streams",
    "fix_tls",
]

# A shell that starts the tests in the background makes them ignore Ctrl-C, also in their children.
# Tests of Ctrl-C need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
