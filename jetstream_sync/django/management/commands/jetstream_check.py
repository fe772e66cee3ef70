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
    flags: tuple[tuple[str, str], ...] = (
        (
            "--verify",
            "Compare the calls of tasks with their messages, states and dead letters instead.",
        ),
    )

    def use(self, options: dict[str, Any]) -> None:
        """Check the worker; exit with the status with which it would end."""
        worker = find_worker(options["worker"])
        if options["verify"]:
            found = worker.verify()
            if text := worker.unverified():
                self.stderr.write(text)
            for text in found:
                self.stdout.write(text)
            sys.exit(1 if found else 0)
        sys.exit(show_check(worker, self.stdout.write, self.stderr.write))
