"""
Let Spark find ``format("jetstream")`` without ``register()``.

Spark imports every top-level module whose name starts with ``pyspark_``, and takes the class
`DefaultSource` from it. An error here would end the look-up of *all* Python data sources. So this
module imports nothing from the package, and defines nothing if PySpark has no Python data sources.
"""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping

# PySpark before 4.0 has no Python data sources, and the environment may have no PySpark at all.
with contextlib.suppress(ImportError):
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """Placeholder with the name of the data source; creating it returns the real one."""

        def __new__(cls, options: MutableMapping[str, str]) -> DataSource:  # type: ignore[misc]
            """Return the real data source, which is not of this class."""
            from jetstream_sync.spark.source import JetStreamDataSource  # noqa: PLC0415

            return JetStreamDataSource(options)

        @classmethod
        def name(cls) -> str:
            """Return the short name for ``format()``."""
            return "jetstream"
