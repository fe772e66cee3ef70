"""
A server in operator mode, and JWTs of an operator, accounts and users.

The format is version 2 of nats-io/jwt; the keys are made by the nkeys package. The package under
test is not used to make them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import nkeys
import pytest

from jetstream_sync.server import NatsServer

__all__ = ["Account", "Identity", "Operator", "User", "expired_by"]

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}


def now() -> int:
    """Return the time in seconds, as JWTs have it."""
    return int(datetime.now(timezone.utc).timestamp())


def expired_by(seconds: float) -> bool:
    """Return whether a JWT's expiry time is reached."""
    return datetime.now(timezone.utc) >= datetime.fromtimestamp(seconds, timezone.utc)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Identity:
    """A key pair with its public key as the name."""

    prefix = nkeys.PREFIX_BYTE_USER

    def __init__(self) -> None:
        self.seed: str = nkeys.encode_seed(os.urandom(32), self.prefix).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public: str = self._pair.public_key.decode()

    def sign(self, data: bytes) -> bytes:
        signature: bytes = self._pair.sign(data)
        return signature

    def signed(
        self,
        subject: str,
        nats: dict[str, Any],
        *,
        name: str,
        lifetime: timedelta | None = None,
        issued: int | None = None,
    ) -> str:
        """Return a JWT of this identity about a subject."""
        claims: dict[str, Any] = {
            "iat": now() if issued is None else issued,
            "iss": self.public,
            "name": name,
            "sub": subject,
            "nats": {"version": 2, **nats},
        }
        if lifetime is not None:
            claims["exp"] = claims["iat"] + int(lifetime.total_seconds())
        digest = hashlib.new("sha512_256", json.dumps(claims).encode()).digest()
        claims["jti"] = base64.b32encode(digest).rstrip(b"=").decode()
        text = ".".join(_encoded(json.dumps(part).encode()) for part in (_HEADER, claims))
        return f"{text}.{_encoded(self.sign(text.encode()))}"


class User(Identity):
    """A user with a key pair and a JWT."""

    def creds(self, jwt: str) -> str:
        """Return the content of the user's ``.creds`` file, in the format of nats-io/jwt."""
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            "NKEY Seed printed below can be used to sign and prove identity.\n"
            "NKEYs are sensitive and should be treated as secrets.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{self.seed}\n------END USER NKEY SEED------\n\n"
            "*************************************************************\n"
        )


_UNLIMITED = {
    **dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1),
    "wildcards": True,
}


class Account(Identity):
    """An account, which signs the JWTs of its users."""

    prefix = nkeys.PREFIX_BYTE_ACCOUNT

    def user(
        self,
        user: User,
        *,
        lifetime: timedelta | None = None,
        issued: int | None = None,
        bearer: bool = False,
    ) -> str:
        """
        Return a JWT for a user.

        Args:
            user: the user.
            lifetime: in whole seconds; ``None``: it does not expire.
            issued: the time of issue; ``None``: now.
            bearer: whether the user needs no key.

        """
        nats: dict[str, Any] = {"type": "user", "subs": -1, "data": -1, "payload": -1}
        if bearer:
            nats["bearer_token"] = True
        return self.signed(user.public, nats, name="user", lifetime=lifetime, issued=issued)


@dataclass
class Operator:
    """An operator with two accounts: one for the system, and one with JetStream."""

    key: Identity = field(default_factory=type("_Key", (Identity,), {"prefix": 14 << 3}))
    system: Account = field(default_factory=Account)
    account: Account = field(default_factory=Account)

    def account_jwt(self, **nats: Any) -> str:
        """Return the JWT of the account with JetStream, with the given claims."""
        limits = {**_UNLIMITED, **dict.fromkeys(("streams", "consumer"), -1)}
        limits.update(dict.fromkeys(("mem_storage", "disk_storage"), -1))
        return self.key.signed(
            self.account.public, {"type": "account", "limits": limits, **nats}, name="A"
        )

    def config(self) -> str:
        """Return the configuration of a server that trusts this operator."""
        operator = self.key.signed(
            self.key.public,
            {"type": "operator", "system_account": self.system.public},
            name="O",
        )
        system = self.key.signed(
            self.system.public, {"type": "account", "limits": _UNLIMITED}, name="SYS"
        )
        return f"""
            operator: {operator}
            system_account: {self.system.public}
            resolver: MEMORY
            resolver_preload: {{
                {self.system.public}: {system}
                {self.account.public}: {self.account_jwt()}
            }}
        """

    def creds(self, folder: Path, **claims: Any) -> Path:
        """Write a ``.creds`` file for a new user of the account, and return its path."""
        user = User()
        path = folder / "user.creds"
        path.write_text(user.creds(self.account.user(user, **claims)))
        return path


@pytest.fixture(scope="session")
def operator() -> Operator:
    """The operator of `jwt_server`."""
    return Operator()


@pytest.fixture(scope="session")
def jwt_server(operator: Operator) -> Iterator[NatsServer]:
    """A server in operator mode that tests share; do not stop or pause it."""
    with NatsServer(name="jwt", config=operator.config()) as server:
        yield server
