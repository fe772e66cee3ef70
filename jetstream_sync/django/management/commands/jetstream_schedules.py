"""``manage.py jetstream_schedules``."""

from __future__ import annotations

from typing import Any

from ...workers import find_worker
from .. import WorkerCommand


class Command(WorkerCommand):
    """List the schedules of a worker, or delete unused ones."""

    help = "List the schedules of the worker; --prune deletes those that it does not define."
    flags: tuple[tuple[str, str], ...] = (("--prune", "delete schedules in the state 'unused'"),)

    def use(self, options: dict[str, Any]) -> None:
        """List the schedules, as ``jsm worker schedules`` does."""
        worker = find_worker(options["worker"])
        states = worker.find_schedules()
        unused = [state for state in states if options["prune"] and state.state == "unused"]
        worker.delete_schedules(unused)
        for item in states:
            state = "deleted" if item in unused else item.state
            self.stdout.write(f"{item.name}: {state} in stream {item.stream}")
