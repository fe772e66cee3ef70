"""Checks that run in a forked child."""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from collections.abc import Callable

from fix_threads import SCALE

__all__ = ["in_child"]


def in_child(check: Callable[[], object], limit: int = 10) -> None:
    """Run a check in a forked child; fail with its error if it raises or hangs."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            # Print the stacks, and end the process.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, file=writing, chain=True)
            signal.alarm(int(limit * SCALE))
            check()
            status = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        words = stream.read().decode()
    _, status = os.waitpid(pid, 0)
    assert status == 0, words
