"""The JetStream API of a context, for messages in a form that the context does not show."""

from __future__ import annotations

from ...jetstream.context import JetStream
from ...jetstream.requests import APIRequests

__all__ = ["api_of"]


def api_of(js: JetStream) -> APIRequests:
    """Return what asks the API for a context."""
    return js._api  # noqa: SLF001 - there is no public way to raw messages
