"""``manage.py jetstream_check``."""

from __future__ import annotations

import sys
from typing import Any

from ...workers import find_worker
from .. import WorkerCommand


class Command(WorkerCommand):
    """Check streams, consumers, options and permissions of a worker."""

    help = "Check that the worker can run. No message is read, and nothing is changed."

    def use(self, options: dict[str, Any]) -> None:
        """Check the worker; exit with the status with which it would end."""
        worker = find_worker(options["worker"])
        result = worker.check()
        for each in worker.handlers:
            self.stdout.write(f"{each.name}: consumer {each.consumer} of stream {each.stream}")
        for text in result.warnings:
            self.stderr.write(self.style.WARNING(f"warning: {text}"))
        for text in result.errors:
            self.stderr.write(self.style.ERROR(f"error: {text}"))
        sys.exit(result.status)
