"""
The login: what goes into CONNECT, made from the options and the server's INFO.

Only user, password and token are here; signing a nonce takes a key, which is passed in as a
function, so that this stays free of I/O and of cryptography.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Credentials"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """
    What a client proves itself with; none of it shows up in ``repr``.

    Args:
        user: the user's name, or ``None``.
        password: the user's password, or ``None``.
        token: the server's token, or ``None``.

    """

    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def connect_fields(self) -> dict[str, Any]:
        """Return the fields of CONNECT for this login; none when there is nothing to prove."""
        fields = {"user": self.user, "pass": self.password, "auth_token": self.token}
        return {name: value for name, value in fields.items() if value is not None}
