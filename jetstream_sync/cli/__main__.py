"""The ``jsm`` entry point, also ``python -m jetstream_sync.cli``: it needs the ``cli`` extra."""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

__all__ = ["main"]

#: 128 + SIGINT; `ExitStatus` may not be there yet.
_INTERRUPTED = 130


def main() -> NoReturn:
    """Run ``jsm``, or say in one line which extra it needs."""
    try:
        try:
            from .main import main as run_jsm  # noqa: PLC0415 - click may be missing
        except ModuleNotFoundError as error:
            if error.name != "click":
                raise
            sys.exit("jsm needs click: pip install 'jetstream-sync[cli]'")
        run_jsm()
    except KeyboardInterrupt:  # before it could be handled, or while the process ends
        sys.exit(_INTERRUPTED)
    except Exception as error:
        if os.environ.get("JSM_DEBUG"):
            raise
        sys.exit(_bug(error))


def _bug(error: Exception) -> str:
    """Say in one line what went wrong, and where."""
    from pathlib import Path  # noqa: PLC0415 - for bugs only

    last = traceback.extract_tb(error.__traceback__)[-1]
    what = " ".join(f"{type(error).__name__}: {error}".split())
    where = f"{Path(last.filename).name}:{last.lineno}"
    return f"jsm: this is a bug, {what} ({where}); JSM_DEBUG=1 shows more"


if __name__ == "__main__":
    main()
