"""Parse the permissions violations of the server."""

from __future__ import annotations

import re
from typing import Final

# The texts of nats-server's client.go, with subjects quoted by Go's %q; case is ignored. Compiling takes
# a millisecond, so the pattern is compiled on first use.
_VIOLATION: Final = (
    r"permissions violation for (?P<operation>publish to|publish with reply of|subscription to) "
    r'"(?P<subject>(?:[^"\\]|\\.)*)"'
    r'(?: using queue "(?P<queue>(?:[^"\\]|\\.)*)")?'
)
_OPERATIONS: Final = {
    "publish to": "publish",
    "publish with reply of": "reply",
    "subscription to": "subscribe",
}
_ESCAPE: Final = r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)"
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LAST_CHARACTER: Final = 0x10FFFF


def parse_permissions_violation(text: str) -> tuple[str, str, str]:
    """Return the refused operation, subject and queue of an ``-ERR``; empty if it does not name them."""
    found = re.search(_VIOLATION, text, re.IGNORECASE)
    if found is None:
        return "", "", ""
    operation = _OPERATIONS[found["operation"].lower()]
    return operation, _unquoted(found["subject"]), _unquoted(found["queue"] or "")


def _unquoted(text: str) -> str:
    """Undo the quoting of Go's ``%q``, without the surrounding quotes."""

    def unescaped(escape: re.Match[str]) -> str:
        what = escape[1]
        if len(what) == 1:
            return _ESCAPED.get(what, what)
        code = int(what[1:], 16)
        return chr(code) if code <= _LAST_CHARACTER else "\ufffd"

    return re.sub(_ESCAPE, unescaped, text)
