"""The errors that a server sends, by their texts."""

# The texts are those of nats-server's client.go, with subjects quoted by Go's %q; case is ignored.

from __future__ import annotations

import re
from typing import Final

from .. import errors

# A login that was valid before, of a user or of a whole account.
_EXPIRED_WORDS: Final = ("authentication expired", "authentication revoked")
_AUTH_WORDS: Final = ("authorization violation", "authentication timeout")
# Compiling takes a millisecond, so the pattern is compiled on first use.
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


def error_from_text(text: str) -> errors.Error:
    """Return the error for the text of a server's ``-ERR``."""
    lower = text.lower()
    if any(words in lower for words in _EXPIRED_WORDS):
        return errors.AuthenticationExpiredError(text)
    if any(words in lower for words in _AUTH_WORDS):
        return errors.AuthorizationError(text)
    if "permissions violation" in lower:
        return permissions_error(text)
    # The last two texts: the subject of a SUB, and in pedantic mode of a PUB.
    if lower in ("maximum subscriptions exceeded", "invalid subject", "invalid publish subject"):
        return errors.SubscriptionError(text)
    if "stale connection" in lower:
        return errors.StaleConnectionError(text)
    if "secure connection" in lower:
        return errors.SecureConnectionError(text)
    return errors.ServerRefusedError(text)


def ends_connection(error: errors.Error) -> bool:
    """Return whether a server closes the connection after the ``-ERR`` of this error."""
    return not isinstance(error, errors.SubscriptionError)


def permissions_error(text: str) -> errors.PermissionsError:
    """Return the error with the refused operation, subject and queue, which are empty if it does not name them."""
    found = re.search(_VIOLATION, text, re.IGNORECASE)
    if found is None:
        return errors.PermissionsError(text)
    operation = _OPERATIONS[found["operation"].lower()]
    queue = _unquoted(found["queue"] or "")
    return errors.PermissionsError(text, operation, _unquoted(found["subject"]), queue)


def _unquoted(text: str) -> str:
    """Undo the quoting of Go's ``%q``, without the surrounding quotes."""

    def unescaped(escape: re.Match[str]) -> str:
        what = escape[1]
        if len(what) == 1:
            return _ESCAPED.get(what, what)
        code = int(what[1:], 16)
        return chr(code) if code <= _LAST_CHARACTER else "\ufffd"

    return re.sub(_ESCAPE, unescaped, text)
