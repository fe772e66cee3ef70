"""The threads of the worker runtime: named daemons that report what ends them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .logs import log


def spawn(
    name: str, target: Callable[[], None], crashed: Callable[[BaseException], object]
) -> threading.Thread:
    """
    Start a daemon thread.

    Args:
        name: its name.
        target: the function to run.
        crashed: called with an exception that ``target`` raises.

    """

    def run() -> None:
        try:
            target()
        except BaseException as error:
            log.exception("thread %s crashed", name)
            crashed(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
