"""``manage.py jetstream_check``."""

from __future__ import annotations

import sys
from typing import Any

from ....workers.command import show_check
from ...workers import find_worker
from .. import WorkerCommand


class Command(WorkerCommand):
    """Check streams, consumers, options and permissions of a worker."""

    help = "Check that the worker can run. No message is read, and nothing is changed."

    def use(self, options: dict[str, Any]) -> None:
        """Check the worker; exit with the status with which it would end."""
        worker = find_worker(options["worker"])
        sys.exit(show_check(worker, self.stdout.write, self.stderr.write))
