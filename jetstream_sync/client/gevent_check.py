"""
Check that gevent's monkey patching, if used, is complete.

The package does not import gevent: it uses patched sockets, threads and locks like any others. But
either all or none of them must be patched. A greenlet that reads from an unpatched socket blocks all
others, and a real thread cannot wait on gevent's sockets.
"""

from __future__ import annotations

import sys
from typing import Final

from ..errors import Error

#: The modules with blocking calls that this package uses.
_USED: Final = ("select", "socket", "threading")


def is_gevent() -> bool:
    """Return whether gevent has patched `threading`, so that threads are greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def check_patches() -> None:
    """Raise if gevent has patched only some of the modules that are used."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return
    patched = [name for name in _USED if monkey.is_module_patched(name)]
    if patched and len(patched) < len(_USED):
        missing = [name for name in _USED if name not in patched]
        raise Error(
            f"gevent has patched {' and '.join(patched)}, but not {' and '.join(missing)}:"
            " call gevent.monkey.patch_all() without exclusions"
        )
