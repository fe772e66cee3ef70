"""The commands for messages: ``pub``, ``req`` and ``sub``."""

from __future__ import annotations

from .pub import pub
from .req import req
from .sub import sub

__all__ = ["pub", "req", "sub"]
