"""Run the crash test: ``python -m tests.faults.spark``."""

from __future__ import annotations

import sys
from pathlib import Path

# Put the folder of the raw client on the path, as pytest does.
sys.path.insert(0, str(Path(__file__).parents[2]))

from .run import main

sys.exit(main())
