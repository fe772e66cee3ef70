"""
What goes over the connection, for people: each request with its answer, JSON indented.

It reads the lines of `ConnectOptions.trace_cb`. Logins are not in it: of what is no message nothing is
shown.
"""

from __future__ import annotations

import json
from typing import Final, TextIO

__all__ = ["Trace"]

#: Commands with a payload, and how many sizes their last words are.
_SIZES: Final = {"PUB": 1, "HPUB": 2, "MSG": 1, "HMSG": 2}


class Trace:
    """
    Writes messages to a stream, as they come.

    Args:
        out: where to; only the thread that calls `line` writes there.

    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        #: Subjects that answers to requests come on.
        self._replies: set[str] = set()

    def line(self, text: str) -> None:
        """Take a line of the trace."""
        mark, _, rest = text.partition(" ")
        command, *parts = rest.split(" | ")
        words = command.split()
        sizes = _SIZES.get(words[0], 0) if words else 0
        if mark not in (">", "<") or not sizes or len(words) < sizes + 2:
            return
        has_headers = sizes == 2
        header = parts[0] if has_headers and parts else ""
        body = " | ".join(parts[1:] if has_headers else parts)
        subject = words[1]
        if mark == ">":
            if len(words) > sizes + 2:
                self._replies.add(words[2])
            head = f">>> {subject}:"
        elif subject in self._replies:
            self._replies.discard(subject)
            head = "<<<"
        else:
            head = f"<<< {subject}:"
        lines = [head]
        if header and header != "NATS/1.0":
            lines += header.removeprefix("NATS/1.0, ").split(", ")
        lines.append(_body(body))
        self._out.write("\n".join([*lines, "---"]) + "\n")
        self._out.flush()


def _body(text: str) -> str:
    if not text:
        return "nil"
    if text[0] not in "{[":
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
