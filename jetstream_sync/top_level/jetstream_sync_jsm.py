"""
The entry point of the ``jsm`` command, which handles Ctrl-C before it imports the library.

pyproject.toml installs this module at the top level, beside the package ``jetstream_sync``. A module in
the package would import ``jetstream_sync`` before its own first line runs, and Ctrl-C during that import
would print a traceback. For the same reason this module imports only built-in modules, not ``signal``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # it has no type stub
import os


def _exit(_number: int, _frame: object) -> None:
    # Nothing was started yet, so there is nothing to clean up. 130 is 128 + SIGINT.
    os._exit(130)


def main() -> None:
    """Run ``jsm`` as a process; see `jetstream_sync.cli.__main__`."""
    # A shell starts a background job with SIGINT ignored; keep ignoring it.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _exit)
    from jetstream_sync.cli.__main__ import main as run_jsm  # noqa: PLC0415 - see above

    run_jsm()
