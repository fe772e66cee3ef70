"""The ``--format`` option: a Python format string over the fields of a message."""

from __future__ import annotations

from typing import Any

from .status import CommandError, ExitStatus

__all__ = ["FORMAT_HELP", "MessageFormat"]

FORMAT_HELP = "Format each message, for example '{stream_seq} {subject} {text}\\n'."


class MessageFormat:
    r"""
    A format string for messages, given by the user.

    Args:
        text: a format string; its fields are those of the JSON document, and ``headers[NAME]``.
            The escapes ``\n``, ``\t`` and ``\0`` are replaced.

    """

    def __init__(self, text: str) -> None:
        for mark, character in (("\\n", "\n"), ("\\t", "\t"), ("\\0", "\0")):
            text = text.replace(mark, character)
        self._text = text

    def fill(self, document: dict[str, Any]) -> str:
        """
        Return the formatted message.

        Raises:
            CommandError: the format is invalid, or names an unknown field.

        """
        headers = {name: values[0] for name, values in document.get("headers", {}).items()}
        fields = {"text": "", **document, "headers": _Headers(headers)}
        try:
            return self._text.format_map(fields)
        except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
            known = ", ".join(fields)
            raise CommandError(
                f"--format: {error}; the fields are {known}", ExitStatus.USAGE
            ) from error


class _Headers(dict[str, str]):
    """Headers of a message; a missing one is empty."""

    def __missing__(self, name: str) -> str:
        return ""
