"""The ``jsm`` entry point, also ``python -m jetstream_sync.cli``: it needs the ``cli`` extra."""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run ``jsm``, or say in one line which extra it needs."""
    try:
        from .main import main as run_jsm  # noqa: PLC0415 - click may be missing
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit("jsm needs click: pip install 'jetstream-sync[cli]'")
    run_jsm()


if __name__ == "__main__":
    main()
