"""Names on the command line, checked before anything is connected."""

from __future__ import annotations

from typing import Any, Final

import click

from ..errors import InvalidNameError
from ..subjects import check_stream_name
from .values import ParamType

__all__ = ["STREAM_NAME"]


class _StreamName(ParamType):
    """A name that a stream can have; a server would not even answer to others."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check it."""
        try:
            return check_stream_name(value)
        except InvalidNameError as error:
            self.fail(str(error), param, ctx)


STREAM_NAME: Final = _StreamName()
