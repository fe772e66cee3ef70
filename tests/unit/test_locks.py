"""Locks that a Ctrl-C in ``with lock:`` leaves free."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
from functools import partial
from operator import methodcaller

import pytest

from jetstream_sync.locks import InterruptSafeLock

_CALL = methodcaller("__call__")


class InterruptedLock:
    """A lock whose `acquire`, written in C as that of the plain lock, leaves a pending interrupt."""

    def __init__(self) -> None:
        self.plain = threading.Lock()
        self.release = self.plain.release
        self.__exit__ = self.plain.__exit__
        self.locked = self.plain.locked

    @property
    def acquire(self):
        # A list of C functions that are called from C, so that no bytecode runs between them.
        return partial(list, map(_CALL, (self.plain.acquire, _thread.interrupt_main)))


def test_an_interrupt_after_acquiring_releases_the_lock():
    """An interrupt that is pending when the lock has been acquired is raised, and the lock is free."""
    plain = InterruptedLock()
    lock = InterruptSafeLock(plain)
    with pytest.raises(KeyboardInterrupt), lock:
        pytest.fail("the block was entered")
    assert not plain.locked()


#: A process of its own: the limit of the time of tests uses the same timer.
_SIGNALS = """
import signal
import threading
from jetstream_sync.locks import InterruptSafeLock, new_lock, new_rlock

lock = {make}
free = []

def check():
    free.append(lock.acquire(timeout=1))
    if free[-1]:
        lock.release()

def interrupt(*_):
    raise KeyboardInterrupt

for number in range(100):
    try:
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 20e-6 + number * 1e-6)
        for _ in range(50_000):  # an interrupt in a finalizer is lost
            with lock:
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    assert free[-1], f"held after signal {{number}}"
print(len(free))
"""


@pytest.mark.parametrize(
    "make",
    [
        "new_lock()",
        "new_rlock()",
        "InterruptSafeLock(threading.Lock())",
        "InterruptSafeLock(threading.RLock())",
    ],
)
def test_signals_leave_the_lock_free(make):
    """After each of many signals in a ``with`` statement, another thread can acquire the lock."""
    script = _SIGNALS.format(make=make)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "100\n"), done.stderr


def test_a_reentrant_lock_can_be_entered_twice():
    """The thread that holds a reentrant lock enters it again."""
    lock = InterruptSafeLock(threading.RLock())
    with lock, lock:
        pass
    with pytest.raises(RuntimeError):
        lock.release()


def test_the_block_of_an_error_releases_the_lock():
    """An exception in the block leaves the lock free, and is raised."""
    lock = InterruptSafeLock(threading.Lock())
    with pytest.raises(ValueError, match="inside"), lock:
        raise ValueError("inside")
    assert not lock.locked()
