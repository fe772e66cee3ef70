"""
What gevent's monkey patching has to have done, where it was used.

The package needs nothing of gevent and does not import it: patched sockets, threads and locks are used
as any others are. But all of them have to be patched, or none: a greenlet that reads from a socket that
really blocks stops every other one, and a real thread can not wait on gevent's sockets.
"""

from __future__ import annotations

import sys
from typing import Final

from ..errors import Error

__all__ = ["check_patches", "is_gevent"]

#: The modules whose blocking calls are used.
_USED: Final = ("select", "socket", "threading")


def is_gevent() -> bool:
    """Return whether gevent has patched threads, which are greenlets then."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def check_patches() -> None:
    """
    Refuse to run where gevent has patched only a part of what is used.

    Raises:
        Error: it has; the message names the modules.

    """
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return
    patched = [name for name in _USED if monkey.is_module_patched(name)]
    if patched and len(patched) < len(_USED):
        missing = [name for name in _USED if name not in patched]
        raise Error(
            f"gevent has patched {' and '.join(patched)}, but not {' and '.join(missing)}:"
            " call gevent.monkey.patch_all() without leaving anything out"
        )
