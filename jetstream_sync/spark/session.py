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

_REDACTED: Final = "spark.sql.redaction.options.regex"
#: Options whose values are secrets, and values with a login in a URL. What Spark hides without this
#: has secret, password, token or url in it.
_SECRETS: Final = r"(?i)^(creds|nkeySeed)$|://[^/\s]*@"


def register(spark: SparkSession) -> None:
    """
    Make ``format("jetstream")`` known to a session, with workers that can run it, and hide its secrets.

    Where the workers run on this machine (the master is ``local``) and no other interpreter was
    chosen for them (``PYSPARK_PYTHON``), they run the interpreter of this process from now on: in
    a virtual environment that is not activated they would run another one, which has no such
    package.

    Spark writes the options of a table into the plan of a view of it, and so into its event log. It
    hides those that are called password or token by itself; from now on it hides ``creds``,
    ``nkeySeed`` and logins in ``servers``, too.

    Where the package is installed, Spark finds the data source without this, see
    ``pyspark_jetstream``. It does not where the package was shipped (``--py-files``,
    ``addPyFile``), or where the interpreter is another one.

    Args:
        spark: the session; on a cluster only the data source is registered, and the workers'
            interpreter is what ``PYSPARK_PYTHON`` said when the driver started.

    Raises:
        ImportError: PySpark is older than 4.0, or pyarrow is missing.

    """
    from .source import JetStreamDataSource  # noqa: PLC0415 - it imports PySpark and pyarrow

    # A Spark Connect session has no context: its workers are the server's matter.
    context = getattr(spark, "sparkContext", None)
    if context is not None and context.master.startswith("local") and not _chosen():
        context.pythonExec = sys.executable
    spark.dataSource.register(JetStreamDataSource)
    hidden = spark.conf.get(_REDACTED) or ""
    if _SECRETS not in hidden:
        spark.conf.set(_REDACTED, f"{hidden}|{_SECRETS}" if hidden else _SECRETS)


def _chosen() -> bool:
    # spark-submit puts what its setting spark.pyspark.python says into the variable.
    return bool(os.environ.get("PYSPARK_PYTHON"))
