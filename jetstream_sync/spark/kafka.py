"""
What a user of Spark's Kafka source and sink writes, and what to write here.

The errors for unknown options and the table in ``docs/howto/spark-from-kafka.rst`` come from `KAFKA_OPTIONS`.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class KafkaOption(NamedTuple):
    """An option of Spark's Kafka source or sink."""

    option: str
    """The name; ``kafka.*`` stands for all settings of the Kafka client."""
    instead: str
    """The option to use, as a clause."""


_SAME: Final = "the same here"

#: All options of Spark's Kafka source and sink. Those that are the same here are known options.
KAFKA_OPTIONS: Final = (
    KafkaOption("kafka.bootstrap.servers", "use servers"),
    KafkaOption("kafka.group.id", "leave it out: a query reads by sequence, without a group"),
    KafkaOption("kafka.*", "use the options for the connection, such as user or credsFile"),
    KafkaOption("subscribe", "use stream for the streams, and subjects to filter them"),
    KafkaOption("subscribePattern", "use streamPattern, such as ORDERS_* or /ORDERS_[0-9]+/"),
    KafkaOption("assign", "use stream: a stream has no partitions to choose from"),
    KafkaOption(
        "topic",
        "use stream for the stream, and subject for rows without a subject: unlike topic, it does not override the column",
    ),
    KafkaOption("startingOffsets", _SAME),
    KafkaOption("endingOffsets", _SAME),
    KafkaOption("startingTimestamp", _SAME),
    KafkaOption("endingTimestamp", _SAME),
    KafkaOption("startingOffsetsByTimestamp", _SAME),
    KafkaOption("endingOffsetsByTimestamp", _SAME),
    KafkaOption("startingOffsetsByTimestampStrategy", f"{_SAME}, but latest is the default"),
    KafkaOption("maxOffsetsPerTrigger", _SAME),
    KafkaOption("minOffsetsPerTrigger", _SAME),
    KafkaOption("maxTriggerDelay", f"{_SAME}, but counts from the first waiting message"),
    KafkaOption("minPartitions", _SAME),
    KafkaOption("maxRecordsPerPartition", _SAME),
    KafkaOption("failOnDataLoss", _SAME),
    KafkaOption("includeHeaders", "leave it out: headers is a column of the schema"),
    KafkaOption("groupIdPrefix", "leave it out: a query reads by sequence, without a group"),
    KafkaOption("kafkaConsumer.pollTimeoutMs", "use timeout"),
    KafkaOption("fetchOffset.numRetries", "use planningTimeout"),
    KafkaOption("fetchOffset.retryIntervalMs", "use planningTimeout"),
)


def counterpart(option: str) -> KafkaOption | None:
    """Return the entry of an option of Kafka that does not exist here, ``None`` for another option."""
    name = option.lower()
    for known in KAFKA_OPTIONS:
        if known.option.lower() == name:
            return None if known.instead.startswith(_SAME) else known
    if name.startswith("kafka."):
        return KafkaOption(option, dict(KAFKA_OPTIONS)["kafka.*"])
    return None
