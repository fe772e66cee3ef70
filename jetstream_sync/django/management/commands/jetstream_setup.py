"""``manage.py jetstream_setup``."""

from __future__ import annotations

import sys
from typing import Any

from ...workers import find_worker
from .. import WorkerCommand


class Command(WorkerCommand):
    """Create and update the streams, buckets and consumers of a worker."""

    help = "Create the streams, buckets and consumers of the worker, and update those that differ."
    flags: tuple[tuple[str, str], ...] = (
        ("--check", "Show the changes and make none; exit with status 1 if there are any."),
    )

    def use(self, options: dict[str, Any]) -> None:
        """Show each step, and make it."""
        check = options["check"]
        worker = find_worker(options["worker"])
        steps = worker.setup(check=check, report=lambda step: self.stdout.write(str(step)))
        if not steps:
            self.stdout.write("Nothing to do")
        sys.exit(1 if check and steps else 0)
