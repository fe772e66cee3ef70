"""
A Ctrl-C at a chosen moment of a call.

Where this Python traces opcodes reliably, moment n is the n-th point where CPython checks for signals.
Elsewhere a timer sends a signal, and the moments are delays that grow by a tenth.
"""

from __future__ import annotations

import dis
import math
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

__all__ = ["interrupted", "points", "sends_ctrl_c"]

#: From Python 3.12 on not every opcode is traced.
_BY_SIGNALS = sys.version_info >= (3, 12)
#: Marks a test that interrupts calls. Signals need the timer that otherwise limits the time of a test.
#: In Python 3.11.2 the interpreter has stopped for ever in these tests, at a call outside the package.
sends_ctrl_c = (
    pytest.mark.timeout(120, method="thread")
    if _BY_SIGNALS
    else pytest.mark.skipif(
        (3, 11) <= sys.version_info < (3, 11, 4),
        reason="this Python does not trace opcodes reliably",
    )
)

_PACKAGE = "jetstream_sync"
#: Modules of the standard library that the package may wait in.
_WAITING = {"threading.py", "_base.py", "queue.py"}

# CPython runs signal handlers after a call of a C function, when a function is entered, and at jumps
# backward. 3.10 does so also at the caller of a Python function, and at any jump that is taken, but not
# before an instruction that begins a block. It never does between other instructions.
_IS_3_10 = sys.version_info < (3, 11)
_ALWAYS = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
_NEVER = ("CALL_INTRINSIC", "JUMP_BACKWARD_NO_INTERRUPT")
_WHERE_TAKEN = ("POP_JUMP_IF",) if _IS_3_10 else ("POP_JUMP_BACKWARD",)
_BLOCK_STARTS = ("SETUP_FINALLY", "SETUP_WITH", "YIELD_FROM") if _IS_3_10 else ()


def _codes(names: tuple[str, ...]) -> frozenset[int]:
    return frozenset(
        code
        for code, name in enumerate(dis.opname)
        if name.startswith(names) and not name.startswith(_NEVER)
    )


_LOOKED_AT = _codes(_ALWAYS)
_LOOKED_AT_WHERE_TAKEN = _codes(_WHERE_TAKEN)
_NOT_LOOKED_BEFORE = frozenset(dis.opmap[name] for name in _BLOCK_STARTS)


@cache
def _handlers(code: CodeType) -> dict[int, int]:
    """Map each instruction in a ``try`` or ``with`` to its handler; 3.10 needs none."""
    if _IS_3_10:
        return {}
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    handlers = {}
    for entry in reversed(entries):  # the first match counts
        handlers.update(dict.fromkeys(range(entry.start, entry.end, 2), entry.target))
    return handlers


@cache
def _is_traced(filename: str) -> bool:
    path = Path(filename)
    return _PACKAGE in path.parts or path.name in _WAITING


class _Bomb:
    """Raises KeyboardInterrupt at the n-th point, once."""

    def __init__(self, moment: int) -> None:
        self.left = moment
        self.went_off = False
        self._returned = False  # from a function of this file: CPython does not check there

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.went_off or not _is_traced(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        last = frame.f_lasti
        entered = _IS_3_10  # there is no instruction for it

        def opcode(inner: FrameType, event: str, _: Any) -> Any:
            nonlocal last, entered
            if event == "return":
                self._returned = not _IS_3_10
            elif event == "exception":
                last = -1  # the call that raised it is not followed by a check
            elif event == "opcode" and not self.went_off:
                returned, self._returned = self._returned, False
                code = inner.f_code
                done = code.co_code[last] if last >= 0 else 0
                begins_block = code.co_code[inner.f_lasti] in _NOT_LOOKED_BEFORE
                jumped = done in _LOOKED_AT_WHERE_TAKEN and inner.f_lasti - last > 2
                # This raises just before the next instruction, CPython at the end of this one: where
                # that makes a difference, as at a return inside a `with`, it cannot be simulated.
                handlers = _handlers(code)
                same = handlers.get(last) == handlers.get(inner.f_lasti)
                last = inner.f_lasti
                looked, entered = entered or done in _LOOKED_AT or jumped, False
                if looked and same and not returned and not begins_block:
                    self._tick()
            return opcode

        return opcode

    def _tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.went_off = True
            raise KeyboardInterrupt


#: The delay of moment 1, in seconds.
_FIRST_DELAY_S = 1e-6
#: Moments that are tried even if the call ended before: a short call is missed by chance.
_SURE_MOMENTS = 60
#: Delay after which a signal that came outside of the package is sent again, in seconds.
_AGAIN_S = 10e-6
_NEVER_S = 3600.0


def _delay(moment: int) -> float:
    """Return the delay of a moment in seconds, give or take a tenth."""
    grown = math.log(_FIRST_DELAY_S) + min(moment, 10_000) * math.log(1.1)
    return math.exp(min(grown, math.log(_NEVER_S))) * random.uniform(0.9, 1.1)


def _run_with_signal(call: Callable[[], object], delay: float) -> bool:
    """Call a function and interrupt it after a delay in seconds; return whether it was interrupted."""
    went_off = False

    def interrupt(_: int, frame: FrameType | None) -> None:
        nonlocal went_off
        if went_off:
            return
        if frame is not None and _is_traced(frame.f_code.co_filename):
            went_off = True
            raise KeyboardInterrupt
        # Not an interval: a second signal could interrupt this function.
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)

    # The handler stays: another thread may receive the last signal late.
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, delay)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        was_interrupted, went_off = went_off, True
        signal.setitimer(signal.ITIMER_REAL, 0)
    return was_interrupted


def interrupted(call: Callable[[], object], moment: int) -> bool:
    """
    Call a function with a Ctrl-C at the given moment inside the package.

    Return false if the call ended before: then no later moment can interrupt it.

    Args:
        call: what to interrupt; what it raises besides the KeyboardInterrupt goes through.
        moment: 1 for the first point where a signal can be handled, and so on.

    """
    if _BY_SIGNALS:
        return _run_with_signal(call, _delay(moment)) or moment < _SURE_MOMENTS
    return _run(call, _Bomb(moment)).went_off


def points(call: Callable[[], object]) -> int:
    """Call a function, and return the number of moments at which it can be interrupted."""
    if _BY_SIGNALS:
        began = time.perf_counter()
        call()
        took = time.perf_counter() - began
        return max(int(math.log(took / _FIRST_DELAY_S, 1.1)), 11)
    return -_run(call, _Bomb(0)).left


def _run(call: Callable[[], object], bomb: _Bomb) -> _Bomb:
    before = sys.gettrace()
    sys.settrace(bomb.trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return bomb
