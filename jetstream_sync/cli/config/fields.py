"""Config fields from options: subjects, metadata and changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from ...codec import Record

__all__ = ["changed", "labels_of", "subjects_of"]

R = TypeVar("R", bound=Record)


def subjects_of(values: Sequence[str]) -> list[str]:
    """Return the subjects in values that are lists separated by commas or spaces."""
    return [each for value in values for each in value.replace(",", " ").split()]


def labels_of(values: Sequence[str]) -> dict[str, str]:
    """
    Return the metadata of ``--metadata KEY=VALUE``.

    Raises:
        click.BadParameter: a value has no key.

    """
    labels = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(
                f"invalid value {value!r}: expected KEY=VALUE", param_hint="--metadata"
            )
        labels[key] = text
    return labels


def changed(config: R, fields: Mapping[str, Any]) -> R:
    """
    Return a config with some fields replaced; metadata is merged.

    An empty metadata value removes its key.

    Raises:
        InvalidOptionError: the values contradict each other.

    """
    fields = dict(fields)
    labels = fields.get("metadata")
    if labels is not None:
        merged = {**(getattr(config, "metadata", None) or {}), **labels}
        fields["metadata"] = {key: value for key, value in merged.items() if value}
    return replace(config, **fields)
