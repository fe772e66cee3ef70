"""Run it: ``python -m tests.faults``."""

from __future__ import annotations

import sys
from pathlib import Path

# The fault proxy and the raw client are where pytest finds them, too.
sys.path.insert(0, str(Path(__file__).parents[1]))

from .run import main

sys.exit(main())
