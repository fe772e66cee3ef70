"""The version of this package, independent of installed metadata, which a zip file does not have."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0.dev0"
