"""
JetStream in Django projects: publishing after a commit, an outbox, and workers.

Add ``"jetstream_sync.django"`` to ``INSTALLED_APPS``, and the setting ``JETSTREAM``, whose keys are the
fields of `Config`::

    JETSTREAM = {"servers": "nats://127.0.0.1:4222", "name": "shop", "dead_letters": "DEAD"}

The models are in `jetstream_sync.django.models`. Handlers belong in the module ``workers`` of an app::

    from jetstream_sync.django import worker


    @worker.handler(stream="ORDERS", consumer="BILLING", decode="json", atomic=True)
    def bill(order): ...

``manage.py jetstream_worker`` runs them, and ``manage.py jetstream_check`` checks that it can.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..version import needs_extra
from ..workers.events import hold_hangup
from ..workers.operations.heartbeat import supervisor_link

with needs_extra("django"):
    from .config import Config, connection, jetstream, publish_on_commit
    from .workers import Worker, default_worker

if TYPE_CHECKING:
    #: The worker of the project; its options are in the setting ``JETSTREAM``.
    worker: Worker

__all__ = ["Config", "Worker", "connection", "jetstream", "publish_on_commit", "worker"]

# The heartbeats of a worker process begin here, before the models are imported, which may take long. A supervisor
# imports them as well, before the command knows that it is one.
supervisor_link()
if sys.argv[1:2] == ["jetstream_worker"]:
    hold_hangup(is_held=True)


def __getattr__(name: str) -> Worker:
    """Create ``worker`` when it is first used: the settings must be complete then."""
    if name == "worker":
        return default_worker()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
