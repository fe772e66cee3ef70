"""
The entry point of the ``jsm`` command, which handles Ctrl-C before it imports the library.

It is no part of the package ``jetstream_sync``, because any import from there imports the library
first. That takes a good part of the time of a short command, and a Ctrl-C in it would be a traceback.
For the same reason this module imports nothing that is written in Python, such as ``signal``.
"""

from __future__ import annotations

import _signal
import os

__all__ = ["main"]


def _exit(_number: int, _frame: object) -> None:
    # Nothing has begun: there is nothing to clean up, and 130 is 128 + SIGINT.
    os._exit(130)


def main() -> None:
    """Run ``jsm`` as a process; see `jetstream_sync.cli.__main__`."""
    # A shell starts a background job with SIGINT ignored, and that stays.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _exit)
    from jetstream_sync.cli.__main__ import main as run_jsm  # noqa: PLC0415 - see above

    run_jsm()
