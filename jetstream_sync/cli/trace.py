"""
The ``--trace`` output: messages sent and received, with indented JSON.

It parses the lines of `ConnectOptions.trace_cb`. Only messages are shown, so credentials are never
in the output.
"""

from __future__ import annotations

import json
from typing import Final, TextIO

__all__ = ["Trace"]

#: Commands with a payload, and the number of sizes at the end of the command line.
_SIZES: Final = {"PUB": 1, "HPUB": 2, "MSG": 1, "HMSG": 2}


class Trace:
    """
    Writes each message to a stream.

    Args:
        out: the output stream; only the thread that calls `line` writes to it.

    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        #: Reply subjects of pending requests.
        self._replies: set[str] = set()

    def line(self, text: str) -> None:
        """Process a line of the trace."""
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
