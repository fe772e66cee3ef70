"""
The queries of the page "Spark recipes" for Avro and protobuf.

Each function starts one query, which publishes the orders of the stream ENCODED as JSON, and the messages that it
cannot decode unchanged on ``decoded.dead``.
"""

import io
import json
import os
import pathlib
import struct

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory
from pyspark.sql.functions import pandas_udf

from jetstream_sync.spark import start_query

SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")


def publish(spark, checkpoint, subject, decoded):
    """Start a query that publishes the result of a function of the payload, which is NULL for an invalid one."""
    reader = spark.readStream.format("jetstream").options(servers=SERVERS, subjects=subject)
    rows = reader.option("startingOffsets", "earliest").load("ENCODED")
    rows = rows.withColumn("json", decoded("data")).selectExpr(
        "if(json IS NULL, 'decoded.dead', 'decoded.valid') AS subject",
        "if(json IS NULL, data, binary(json)) AS data",
    )
    writer = rows.writeStream.format("jetstream").options(servers=SERVERS, stream="DECODED")
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return start_query(writer.start)


def avro(spark, checkpoint, schemas):
    """Decode Avro messages that begin as those of a schema registry do: a zero byte, and the id of their schema."""
    known = {number: fastavro.parse_schema(schema) for number, schema in schemas.items()}
    newest = known[max(known)]

    def decode(data):
        zero, number = struct.unpack_from(">BI", data)
        if zero != 0:
            raise ValueError("not the header of a schema registry")
        return fastavro.schemaless_reader(io.BytesIO(data[5:]), known[number], newest)

    @pandas_udf("string")  # type: ignore[call-overload]
    def decoded(payloads):
        def as_json(data):
            try:
                return json.dumps(decode(data))
            except (EOFError, IndexError, KeyError, ValueError, struct.error):
                return None

        return payloads.map(as_json)

    return publish(spark, checkpoint, "encoded.avro", decoded)


def protobuf(spark, checkpoint, descriptors, name):
    """Decode protobuf messages with the file that ``protoc --descriptor_set_out`` has written."""
    files = pathlib.Path(descriptors).read_bytes()

    @pandas_udf("string")  # type: ignore[call-overload]
    def decoded(payloads):
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
            pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))

        def as_json(data):
            try:
                return json_format.MessageToJson(kind.FromString(data), indent=None)
            except message.DecodeError:
                return None

        return payloads.map(as_json)

    return publish(spark, checkpoint, "encoded.protobuf", decoded)
