"""Small descriptor sets, written field by field."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

TEXT, LONG = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_INT64


def descriptor_set(files: Mapping[str, Mapping[str, Mapping[str, int]]], package: str = "g") -> bytes:
    """A set of files, each with its messages, each with its fields and their types."""
    return FileDescriptorSet(
        file=[_file(name, messages, package) for name, messages in files.items()]
    ).SerializeToString()


def _file(name: str, messages: Mapping[str, Mapping[str, int]], package: str) -> FileDescriptorProto:
    file = FileDescriptorProto(name=name, package=package, syntax="proto3")
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for number, (field_name, kind) in enumerate(fields.items(), start=1):
            message.field.add(name=field_name, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)
    return file


GARMADON = descriptor_set(
    {
        "header.proto": {"Header": {"application_id": TEXT}},
        "events.proto": {
            "FsEvent": {"action": TEXT, "size": LONG},
            "GcEvent": {"cause": TEXT},
            "Clash": {"application_id": TEXT},
            "Sourced": {"kafka_offset": LONG},
            "Dated": {"day": TEXT},
        },
        "spark.proto": {"TaskEvent": {"stage": TEXT}},
        "flink.proto": {"TaskEvent": {"subtask": TEXT}},
    }
)
