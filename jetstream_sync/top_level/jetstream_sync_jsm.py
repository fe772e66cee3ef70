"""
The entry point of the ``jsm`` command, which handles Ctrl-C before it imports the library.

pyproject.toml installs this module at the top level, beside the package ``jetstream_sync``. A module in
the package would import all of ``jetstream_sync`` before its own first line runs. That import is a
large part of the run time of a short command, which may not need it, and Ctrl-C during it would print a
traceback.
For the same reason this module imports only built-in modules, not ``signal``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # it has no type stub
import os


def _exit(_number: int, _frame: object) -> None:
    # Nothing was started yet, so there is nothing to clean up. 130 is 128 + SIGINT.
    os._exit(130)


#: The modules that are imported by themselves; any other name imports the whole package.
_ALONE = r"^from \.(errors|api\.\w+|jetstream\.connection) import (\w+) as \2$"


def _import_package_on_demand() -> None:
    """Have ``jetstream_sync`` imported when its first name is used; the help of a command uses few."""
    # Only here, where the process has one thread: a lazy import may block for ever in a forked process.
    import re  # noqa: PLC0415 - see above
    import sys  # noqa: PLC0415
    from importlib import import_module  # noqa: PLC0415
    from importlib.util import find_spec, module_from_spec  # noqa: PLC0415
    from types import ModuleType  # noqa: PLC0415

    spec = find_spec("jetstream_sync")
    if spec is None or spec.loader is None:
        return  # the import below reports it
    package, loader = spec.name, spec.loader
    source = loader.get_source(package) or ""  # type: ignore[attr-defined]  # a loader of files
    alone = {name: place for place, name in re.findall(_ALONE, source, re.MULTILINE)}

    class Package(ModuleType):
        def __getattr__(self, name: str) -> object:
            if name == "errors":
                return import_module(f"{package}.errors")
            if name in alone:
                return getattr(import_module(f"{package}.{alone[name]}"), name)
            if name.startswith("__") and name != "__all__":
                raise AttributeError(name)
            self.__class__ = ModuleType  # type: ignore[assignment]
            loader.exec_module(self)
            return getattr(self, name)

    module = module_from_spec(spec)
    module.__class__ = Package
    sys.modules[package] = module


def main() -> None:
    """Run ``jsm`` as a process; see `jetstream_sync.cli.__main__`."""
    # A shell starts a background job with SIGINT ignored; keep ignoring it.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _exit)
    _import_package_on_demand()
    from jetstream_sync.cli.__main__ import main as run_jsm  # noqa: PLC0415 - see above

    run_jsm()
