"""
A Spark session that knows the data source, and has workers that can run it.

Facts about PySpark 4.3 that this rests on, each seen in a virtual environment that is not activated:
the workers run ``python3``, whichever comes first on ``PATH``; the setting ``spark.pyspark.python``
of a session builder changes nothing; the variable ``PYSPARK_PYTHON`` counts when it is there before
the session starts; ``SparkContext.pythonExec`` counts for every function and data source that is
handed to Spark after it was changed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

_REDACTION_CONF: Final = "spark.sql.redaction.options.regex"
#: Whether shuffled rows of a streaming query are dealt out by how many cores there happen to be.
_ADAPTIVE_CONF: Final = "spark.sql.adaptive.streaming.stateless.enabled"
#: Options whose values are secrets, or may have a login in them. What Spark hides without this has
#: secret, password, token or url in its name. A login needs no scheme before it, so no look at the
#: value tells it from what is none.
_REDACTED_OPTIONS: Final = "(?i)^(creds|nkeySeed|servers)$"


def register(spark: SparkSession) -> None:
    """
    Make ``format("jetstream")`` known to a session that can run it, hides its secrets, and is exact.

    Where the workers run on this machine (the master is ``local``) and no other interpreter was
    chosen for them (``PYSPARK_PYTHON``), they run the interpreter of this process from now on: in
    a virtual environment that is not activated they would run another one, which has no such
    package.

    Spark writes the options of a table into the plan of a view of it, and so into its event log. It
    hides those that are called secret, password or token by itself; from now on it hides ``creds``,
    ``nkeySeed`` and ``servers``, too.

    A batch that is run again has to have the same rows in the same partitions, or the sink does not
    know them again. Where a streaming query without a state shuffles, Spark since 4.1 makes fewer
    partitions of the shuffled ones, and how many depends on the number of cores. From now on it leaves
    them as they are (``spark.sql.adaptive.streaming.stateless.enabled``), unless that was set before.

    Where the package is installed, Spark finds the data source without this, see
    ``pyspark_jetstream``. It does not where the package was shipped (``--py-files``,
    ``addPyFile``), or where the interpreter is another one.

    Args:
        spark: the session; on a cluster only the data source is registered, and the workers'
            interpreter is what ``PYSPARK_PYTHON`` said when the driver started.

    Raises:
        ImportError: PySpark is older than 4.0, or pyarrow is missing.

    """
    from .source import RedactedDataSource  # noqa: PLC0415 - it imports PySpark and pyarrow

    # A Spark Connect session has no context: its workers are the server's matter.
    context = getattr(spark, "sparkContext", None)
    if (
        context is not None
        and context.master.startswith("local")
        and not _interpreter_is_configured()
    ):
        context.pythonExec = sys.executable
    spark.dataSource.register(RedactedDataSource)
    if spark.conf.get(_ADAPTIVE_CONF, None) is None:
        spark.conf.set(_ADAPTIVE_CONF, "false")
    hidden = spark.conf.get(_REDACTION_CONF) or ""
    if _REDACTED_OPTIONS not in hidden:
        spark.conf.set(
            _REDACTION_CONF, f"{hidden}|{_REDACTED_OPTIONS}" if hidden else _REDACTED_OPTIONS
        )


def _interpreter_is_configured() -> bool:
    # spark-submit puts what its setting spark.pyspark.python says into the variable.
    return bool(os.environ.get("PYSPARK_PYTHON"))
