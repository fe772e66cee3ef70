"""Fields of a config, of either kind, that options make: subjects, labels, and what they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from ...codec import Record

__all__ = ["changed", "labels_of", "subjects_of"]

R = TypeVar("R", bound=Record)


def subjects_of(values: Sequence[str]) -> list[str]:
    """Return the subjects of values that may have several each, with commas or spaces between."""
    return [each for value in values for each in value.replace(",", " ").split()]


def labels_of(values: Sequence[str]) -> dict[str, str]:
    """
    Return the labels of ``--metadata KEY=VALUE``.

    Raises:
        click.BadParameter: one has no key.

    """
    labels = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE", param_hint="--metadata")
        labels[key] = text
    return labels


def changed(config: R, fields: Mapping[str, Any]) -> R:
    """
    Return a config with other values in some fields; labels are added to those that there are.

    An empty label takes one away.

    Raises:
        InvalidOptionError: the values can not work together.

    """
    fields = dict(fields)
    labels = fields.get("metadata")
    if labels is not None:
        merged = {**(getattr(config, "metadata", None) or {}), **labels}
        fields["metadata"] = {key: value for key, value in merged.items() if value}
    return replace(config, **fields)
