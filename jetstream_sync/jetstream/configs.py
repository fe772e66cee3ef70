"""A config that a caller gives, as a record or as its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from dataclasses import fields as fields_of
from typing import Any, TypeVar

from ..codec import Record
from ..errors import InvalidOptionError
from ..suggestions import closest_match

__all__ = ["resolve_config"]

R = TypeVar("R", bound=Record)


def resolve_config(record: type[R], config: R | None, fields: Mapping[str, Any]) -> R:
    """
    Return the config that was given.

    Args:
        record: its class.
        config: the record, or ``None``.
        fields: its fields, or nothing.

    Raises:
        InvalidOptionError: both are given, a field is not known, one that must be given is not, or
            a value can not work.
        InvalidNameError, BadSubjectError: as the record says.

    """
    if config is not None:
        if not isinstance(config, record):
            raise InvalidOptionError("config", config, f"expected a {record.__name__}")
        if fields:
            name, value = next(iter(fields.items()))
            raise InvalidOptionError(name, value, "excludes config: change the record instead")
        return config
    known = {each.name: each for each in fields_of(record)}
    for name, value in fields.items():
        if name not in known:
            close = closest_match(name, known)
            hint = f"; did you mean {close}?" if close else ""
            raise InvalidOptionError(name, value, f"{record.__name__} has no such field{hint}")
    for name, each in known.items():
        if each.default is MISSING and each.default_factory is MISSING and name not in fields:
            raise InvalidOptionError(name, None, "it must be given")
    return record(**fields)
