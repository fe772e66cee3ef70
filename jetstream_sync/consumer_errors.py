"""
The errors of administering consumers, beside those that any request can have.

    ConsumerInvalidResetError (a BadRequestError)  its config does not allow the sequence
    ServerTooOldError (a JetStreamError)           its server does not know what was asked for

They are apart from `errors`, whose tree they hang on, because no other part of the package raises them.
"""

from __future__ import annotations

from .errors import BadRequestError, JetStreamError

__all__ = ["ConsumerInvalidResetError", "ServerTooOldError"]


class ConsumerInvalidResetError(BadRequestError, err_codes=(10204,)):
    """The consumer's config does not allow to go on at that sequence; it is as it was."""


class ServerTooOldError(JetStreamError):
    """The server that has the consumer is too old for what was asked; nothing was sent."""

    def __init__(self, feature: str, needs: str, version: str) -> None:
        super().__init__(feature, needs, version)
        self.feature = feature
        self.needs = needs
        self.version = version

    def __str__(self) -> str:
        return f"{self.feature} needs nats-server {self.needs}; this one is {self.version}"
