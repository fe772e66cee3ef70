"""
Entry point of the ``jsm`` command and of ``python -m jetstream_sync.cli``; requires the ``cli`` extra.

Ctrl-C is handled in three phases:

1. While modules are imported, and after the command is done, it ends the process at once: there is
   nothing to clean up. Before this module is imported, the console script does the same.
2. While the command runs, it raises KeyboardInterrupt, and the command cleans up.
3. Where Python cannot raise it, in a finalizer or in a callback of the import system, it is raised again
   a moment later.

Garbage is not collected while modules are imported, nor among the imported objects later, nor when the interpreter
ends: that took a fifth of the processor time of a short command. While the command runs, Python's thresholds hold,
since a worker runs functions of users.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any, NoReturn

from ..version import install_command

#: 128 + SIGINT; `ExitStatus` may not be imported yet.
_INTERRUPTED = 130
#: Delay before an interrupt that could not be raised is raised again, in seconds.
_RERAISE_DELAY_S = 0.01
#: The number of new objects after which garbage is collected during the imports, which make 20,000.
_IMPORTED_OBJECTS = 50_000


def main() -> NoReturn:
    """Run ``jsm``, or exit with one line that names the missing extra."""
    handled = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # a background job ignores it
    _hide_interrupts()
    thresholds = gc.get_threshold()
    gc.set_threshold(_IMPORTED_OBJECTS)
    try:
        if handled:
            signal.signal(signal.SIGINT, _exit)
        try:
            from .main import main as run_jsm  # noqa: PLC0415 - click may be missing
        except ModuleNotFoundError as error:
            if error.name != "click":
                raise
            sys.exit(f"jsm needs click: {install_command('cli')}")
        gc.freeze()  # later collections do not look at what was imported
        gc.set_threshold(*thresholds)
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run_jsm()
    except KeyboardInterrupt:  # before the handler was installed, or while it ran
        sys.exit(_INTERRUPTED)
    except Exception as error:
        if os.environ.get("JSM_DEBUG"):
            raise
        sys.exit(_bug(error))
    finally:
        if handled:
            signal.signal(signal.SIGINT, _exit)
        gc.freeze()


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(_INTERRUPTED)


def _hide_interrupts() -> None:
    """Suppress the traceback of an uncaught KeyboardInterrupt."""
    show, report = sys.excepthook, sys.unraisablehook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            os._exit(_INTERRUPTED)
        show(kind, error, trace)

    def unraisablehook(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, _RERAISE_DELAY_S)
        else:
            report(unraisable)

    sys.excepthook, sys.unraisablehook = excepthook, unraisablehook


def _bug(error: Exception) -> str:
    """Return one line with the error and its source location."""
    import traceback  # noqa: PLC0415 - for bugs only
    from pathlib import Path  # noqa: PLC0415

    last = traceback.extract_tb(error.__traceback__)[-1]
    what = " ".join(f"{type(error).__name__}: {error}".split())
    where = f"{Path(last.filename).name}:{last.lineno}"
    return f"jsm: this is a bug, {what} ({where}); JSM_DEBUG=1 shows more"


if __name__ == "__main__":
    main()
