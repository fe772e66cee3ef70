"""Run the faults: ``python -m tests.faults``."""

from __future__ import annotations

import sys
from pathlib import Path

# Put the fault proxy and the raw client on the path, as pytest does.
sys.path.insert(0, str(Path(__file__).parents[1]))

from .run import main

sys.exit(main())
