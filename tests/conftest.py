"""Fixtures come from one file per concern."""

import signal

# One that imports another comes after it.
pytest_plugins = [
    "fix_gevent",
    "fix_hypothesis",
    "fix_jwt",
    "fix_threads",
    "fix_server",
    "fix_faults",
    "fix_jsm",
    "fix_orders",
    "fix_raw",
    "fix_reruns",
    "fix_spark",
    "fix_spark_streams",
    "fix_tls",
]

# A shell that starts the tests in the background has them ignore Ctrl-C, and their children inherit that.
# Tests of Ctrl-C want the usual behaviour.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
