"""``python -m jetstream_sync.workers``: run a worker without the ``jsm`` command."""

from __future__ import annotations

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
