"""
Register the data source in a Spark session, with workers that can run it.

Facts about PySpark 4.3 that this relies on, each observed in a virtual environment that is not activated:

1. The workers run the first ``python3`` on ``PATH``.
2. The setting ``spark.pyspark.python`` of a session builder has no effect.
3. The variable ``PYSPARK_PYTHON`` takes effect if it is set before the session starts.
4. ``SparkContext.pythonExec`` takes effect for every function and data source that is passed to Spark after
   the change.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REDACTION_CONF: Final = "spark.sql.redaction.options.regex"
#: Whether the number of shuffle partitions of a stateless streaming query depends on the number of cores.
_ADAPTIVE_CONF: Final = "spark.sql.adaptive.streaming.stateless.enabled"
#: Options whose values are secrets, or may contain a login. By default Spark redacts options with secret,
#: password, token or url in their name. A login in a server address needs no URL scheme, so the value alone
#: does not tell whether there is one.
_REDACTED_OPTIONS: Final = "(?i)^(creds|nkeySeed|servers)$"


def register(spark: SparkSession) -> None:
    """
    Register ``format("jetstream")`` in a session, and configure the session for it.

    *Interpreter.* If the workers run on this machine (the master is ``local``) and ``PYSPARK_PYTHON`` is not
    set, they use the interpreter of this process from now on. Otherwise workers started from a virtual
    environment that is not activated would run another interpreter without this package.

    *Secrets.* Spark writes the options of a table into the plan of a view of it, and so into its event log.
    It redacts options with secret, password or token in their name. From now on it also redacts ``creds``,
    ``nkeySeed`` and ``servers``.

    *Replays.* A repeated batch must have the same rows in the same partitions, or the sink cannot recognize
    them. Since Spark 4.1 the number of shuffle partitions of a stateless streaming query depends on the
    number of cores. From now on it is fixed (``spark.sql.adaptive.streaming.stateless.enabled`` is set to
    ``false``), unless that setting was set before.

    Where the package is installed, Spark also finds the data source without this call, see
    ``pyspark_jetstream``. It does not if the package was shipped with ``--py-files`` or ``addPyFile``, or if
    the workers run another interpreter.

    Args:
        spark: the session. On a cluster the interpreter of the workers is not changed: it is the value of
            ``PYSPARK_PYTHON`` when the driver started.

    Raises:
        ImportError: PySpark is older than 4.0, or PyArrow is missing.

    """
    from .source import RedactedDataSource  # noqa: PLC0415 - it imports PySpark and PyArrow

    # A Spark Connect session has no context: its workers are configured on the Spark server.
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
    # spark-submit copies its setting spark.pyspark.python into this variable.
    return bool(os.environ.get("PYSPARK_PYTHON"))
