"""What ``--format`` takes: a format string of Python over the fields of a message's document."""

from __future__ import annotations

from typing import Any

from .status import CommandError, ExitStatus

__all__ = ["FORMAT_HELP", "MessageFormat"]

FORMAT_HELP = "Show each like this: '{stream_seq} {subject} {text}\\n'."


class MessageFormat:
    r"""
    A way to show a message in a text of the user's.

    Args:
        text: a format string, whose fields are those of the JSON document, and ``headers[NAME]``;
            ``\n``, ``\t`` and ``\0`` in it are characters.

    """

    def __init__(self, text: str) -> None:
        for mark, character in (("\\n", "\n"), ("\\t", "\t"), ("\\0", "\0")):
            text = text.replace(mark, character)
        self._text = text

    def fill(self, document: dict[str, Any]) -> str:
        """
        Return the text for a message.

        Raises:
            CommandError: there is a field in it that messages do not have.

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
    """A header that a message does not have is empty."""

    def __missing__(self, name: str) -> str:
        return ""
