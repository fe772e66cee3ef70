"""Configs in files: what ``--config`` and ``--output`` read and write."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ..codec import Record, decode, encode, loads
from ..errors import Error, InvalidArgumentError, InvalidResponseError
from .output import say
from .render import to_json
from .settings import Settings
from .status import CommandError, ExitStatus

__all__ = ["config_of", "config_of_file", "read_document", "read_text", "write_config"]

R = TypeVar("R", bound=Record)


def read_text(settings: Settings, path: str) -> str:
    """
    Return what is in a file; ``-`` is standard input.

    Raises:
        CommandError: it can not be read, or is no text.

    """
    try:
        data = settings.env.stdin.read() if path == "-" else Path(path).read_bytes()
        return data.decode()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}", ExitStatus.USAGE) from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: it is not text", ExitStatus.USAGE) from error


def read_document(settings: Settings, path: str) -> Any:
    """
    Return the document in a file: JSON, or YAML where PyYAML is installed.

    Raises:
        CommandError: it can not be read.

    """
    text = read_text(settings, path)
    try:
        return loads(text)
    except InvalidResponseError as error:
        if text.lstrip().startswith(("{", "[")):
            raise CommandError(f"{path}: {error}", ExitStatus.USAGE) from error
        return _yaml(text, path)


def _yaml(text: str, path: str) -> Any:
    try:
        # Nothing needs it but this, and it has no types.
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise CommandError(
            f"{path}: it is not JSON; to read YAML, install PyYAML", ExitStatus.USAGE
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CommandError(f"{path}: {error}", ExitStatus.USAGE) from error


def config_of(record: type[R], document: Any, more: dict[str, Any]) -> R:
    """
    Return the config in a document: a bare one, or that of an info.

    What the server adds by itself (labels that start with ``_nats.``) is left out.

    Args:
        record: its class.
        document: what was read.
        more: fields to set, as they travel.

    Raises:
        InvalidArgumentError, InvalidResponseError: there is no such config.

    """
    if isinstance(document, dict) and isinstance(document.get("config"), dict):
        document = document["config"]
    if not isinstance(document, dict):
        raise InvalidArgumentError("expected an object with the fields of a config")
    fields = {**document, **more}
    labels = fields.get("metadata")
    if isinstance(labels, dict):
        fields["metadata"] = {
            key: text for key, text in labels.items() if not str(key).startswith("_nats.")
        }
    # Decoding checks types only; the copy is checked like the config of a person that it is.
    return replace(decode(record, fields))


def config_of_file(settings: Settings, record: type[R], path: str, more: dict[str, Any]) -> R:
    """
    Return the config in a file; see `config_of`.

    Raises:
        CommandError: there is none, or it can not work.

    """
    try:
        return config_of(record, read_document(settings, path), more)
    except Error as error:
        raise CommandError(f"{path}: {error}", ExitStatus.USAGE) from error


def write_config(settings: Settings, config: Record, path: str) -> None:
    """
    Write a config to a file; ``-`` is standard output.

    Raises:
        CommandError: it can not be written.

    """
    text = to_json(encode(config))
    if path == "-":
        settings.env.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}", ExitStatus.FAILED) from error
    say(settings, f"Wrote the config to {path}")
