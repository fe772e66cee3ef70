"""Parameter types for names, checked before the command connects."""

from __future__ import annotations

from typing import Any, Final

import click

from ..errors import InvalidNameError
from ..subjects import check_stream_name
from .values import ParamType

__all__ = ["STREAM_NAME"]


class _StreamName(ParamType):
    """A valid stream name; a server does not answer requests with an invalid one."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or fail when it is invalid."""
        try:
            return check_stream_name(value)
        except InvalidNameError as error:
            self.fail(str(error), param, ctx)


STREAM_NAME: Final = _StreamName()
