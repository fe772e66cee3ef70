"""Run it: ``python -m tests.crash_tests``."""

from __future__ import annotations

import sys
from pathlib import Path

# The raw client is where pytest finds it, too.
sys.path.insert(0, str(Path(__file__).parents[1]))

from .run import main

sys.exit(main())
