"""
How ``format("jetstream")`` is found without ``register()``.

Spark imports every top-level module whose name starts with ``pyspark_``, and takes the class
`DefaultSource` from it. An error here would end the look-up of *all* data sources in Python, so this
module imports nothing of the package, and nothing where Spark has no such data sources.
"""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping

__all__ = ["DefaultSource"]

# PySpark before 4.0 has no data sources in Python; an older Python environment has no PySpark.
with contextlib.suppress(ImportError):
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """The name of the data source; using it imports the one that does the work."""

        def __new__(cls, options: MutableMapping[str, str]) -> DataSource:  # type: ignore[misc]
            """Make the data source itself, which is not of this class."""
            from jetstream_sync.spark.source import JetStreamDataSource  # noqa: PLC0415

            return JetStreamDataSource(options)

        @classmethod
        def name(cls) -> str:
            """Return the word for ``format()``."""
            return "jetstream"
