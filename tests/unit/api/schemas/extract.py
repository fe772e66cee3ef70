"""
Write fields.json: which fields the public JetStream schemas have, and of which type.

Usage: python extract.py PATH_OF_A_JSM_GO_CHECKOUT

The schemas are in ``schema_source/jetstream/api/v1`` of github.com/nats-io/jsm.go. Only facts are
taken: for each definition the names of its fields, their JSON type, and the words of enums. A type
is one of bool, int, str, duration, time, {"enum": [words]}, {"array": type}, {"map": type} and
{"ref": definition}.
"""

import json
import sys
from pathlib import Path

NAMED = {
    "basic_name": "str",
    "golang_duration_nanos": "duration",
    "golang_int": "int",
    "golang_int32": "int",
    "golang_int64": "int",
    "golang_time": "time",
    "golang_uint64": "int",
}
PLAIN = {"boolean": "bool", "integer": "int", "string": "str"}


def type_of(schema, definitions):
    reference = schema.get("$ref") or next(iter(schema.get("allOf", ())), {}).get("$ref")
    if reference:
        name = reference.rpartition("/")[2]
        if name in NAMED:
            return NAMED[name]
        if "enum" in definitions[name]:
            return type_of(definitions[name], definitions)
        return {"ref": name}
    if "enum" in schema:
        return {"enum": schema["enum"]}
    kind = schema["type"]
    if kind == "array" or "array" in kind:
        return {"array": type_of(schema["items"], definitions)}
    if kind == "object":
        values = schema.get("additionalProperties") or schema["patternProperties"][".*"]
        return {"map": type_of(values, definitions)}
    return "time" if schema.get("format") == "date-time" else PLAIN[kind]


def main(checkout):
    folder = Path(checkout) / "schema_source/jetstream/api/v1"
    definitions = json.loads((folder / "definitions.json").read_text())["definitions"]
    target = Path(__file__).with_name("fields.json")
    # The definitions that are in the file already; add one as an empty object.
    known = json.loads(target.read_text()).keys() - {"pub_ack_response"}
    schemas = {name: definitions[name] for name in known}
    schemas["pub_ack_response"] = json.loads((folder / "pub_ack_response.json").read_text())
    fields = {
        record: {
            name: type_of(schema, definitions) for name, schema in definition["properties"].items()
        }
        for record, definition in schemas.items()
    }
    target.write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
