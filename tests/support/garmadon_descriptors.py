"""A descriptor set of Garmadon's events, as protoc would write it: what the wire vectors and the export need.

Two of its files define `TaskEvent` in one package, as Garmadon's own do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from penstock.job.messages import find_message
from penstock.job.spec import MessageName

PACKAGE = "com.criteo.hadoop.garmadon"

_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "sint32": FieldDescriptorProto.TYPE_SINT32,
    "sint64": FieldDescriptorProto.TYPE_SINT64,
    "fixed32": FieldDescriptorProto.TYPE_FIXED32,
    "fixed64": FieldDescriptorProto.TYPE_FIXED64,
    "sfixed32": FieldDescriptorProto.TYPE_SFIXED32,
    "sfixed64": FieldDescriptorProto.TYPE_SFIXED64,
}


def add_field(message: DescriptorProto, text: str) -> FieldDescriptorProto:
    """Add a field written as in a source: `string name 3`, `repeated .p.Section section 1`."""
    *label, kind, name, number = text.split()
    field = message.field.add(name=name, number=int(number), label=FieldDescriptorProto.LABEL_OPTIONAL)
    if label == ["repeated"]:
        field.label = FieldDescriptorProto.LABEL_REPEATED
    if label == ["required"]:
        field.label = FieldDescriptorProto.LABEL_REQUIRED
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        # The reader of the set finds out whether a name is of a message or an enum.
        field.type_name = kind
    return field


def add_message(file: FileDescriptorProto, name: str, fields: Iterable[str]) -> DescriptorProto:
    message = file.message_type.add(name=name)
    for text in fields:
        add_field(message, text)
    return message


def numbered(text: str) -> list[str]:
    """Fields in the order of their numbers: `string a b, int64 c` is a 1, b 2 and c 3."""
    named = [(part.split()[0], name) for part in text.split(",") for name in part.split()[1:]]
    return [f"{kind} {name} {number}" for number, (kind, name) in enumerate(named, 1)]


def _file(name: str, *messages: tuple[str, list[str]]) -> FileDescriptorProto:
    file = FileDescriptorProto(name=name, package=PACKAGE, syntax="proto3")
    for message, fields in messages:
        add_message(file, message, fields)
    return file


_HEADER = [
    "string application_id 1",
    "string attempt_id 2",
    "string application_name 3",
    "string username 4",
    "string container_id 5",
    "string hostname 6",
    "string pid 8",
    "string framework 9",
    "string component 10",
    "string executor_id 11",
    "repeated string tags 12",
    "string id 13",
    "string main_class 14",
    "string java_version 15",
    "int32 java_feature 16",
    "string framework_version 17",
]
_FS = [
    "string src_path 1",
    "string dst_path 2",
    "string action 3",
    "string uri 4",
    "uint64 method_duration_millis 5",
    "string hdfs_user 6",
    f".{PACKAGE}.FsEvent.Status status 7",
]
_GC = numbered(
    "string collector_name, int64 pause_time, string cause, "
    "int64 eden_before eden_after survivor_before survivor_after old_before old_after "
    "code_before code_after metaspace_before metaspace_after, float gc_pause_ratio_1_min"
)
_APPLICATION = [
    *numbered("string state queue tracking_url original_tracking_url"),
    "repeated string yarn_tags 5",
    *(f"string {name} {number}" for number, name in enumerate(("am_container_id", "project_name", "workflow_name"), 6)),
    "int64 memory_seconds 9",
    "int64 vcore_seconds 10",
    "string final_status 11",
    "int64 start_time 12",
    "int64 finish_time 13",
]
_CONTAINER = numbered(
    "string state type reason, int32 exit_status, int64 start_time finish_time, bool is_finished, "
    "string container_hostname log_url, int32 vcores_reserved memory_reserved"
)
_SPARK_TASK = numbered(
    "int64 start_time, string task_id stage_id stage_attempt_id executor_hostname status failure_reason, "
    "int64 executor_cpu_time executor_deserialize_cpu_time executor_run_time jvm_gc_time executor_deserialize_time "
    "result_serialization_time result_size peak_execution_memory disk_bytes_spilled memory_bytes_spilled "
    "shuffle_read_records shuffle_read_fetch_wait_time shuffle_read_local_bytes shuffle_read_remote_bytes "
    "shuffle_read_total_bytes shuffle_read_local_blocks_fetched shuffle_read_remote_blocks_fetched "
    "shuffle_read_total_blocks_fetched shuffle_write_shuffle_records shuffle_write_shuffle_time "
    "shuffle_write_shuffle_bytes input_records input_bytes output_records output_bytes, "
    "string type locality, int32 attempt_number"
)
_FLINK_TASK = numbered(
    "string job_id job_name task_id task_name task_attempt_num, int64 buffers_input_queue_length "
    "buffers_output_queue_length buffers_in_pool_usage buffers_out_pool_usage num_records_out num_records_in "
    "num_bytes_out num_bytes_in_local num_bytes_in_remote num_buffers_out num_buffers_in_local num_buffers_in_remote, "
    "double num_bytes_out_per_second num_bytes_in_local_per_second num_bytes_in_remote_per_second "
    "num_buffers_out_per_second num_buffers_in_local_per_second num_buffers_in_remote_per_second "
    "num_records_in_per_second num_records_out_per_second, string subtask_index, "
    "int64 current_input_watermark num_late_records_dropped"
)
_FLINK_OPERATOR = numbered(
    "string job_id job_name task_id task_name operator_id operator_name subtask_index, int64 current_input_watermark "
    "num_late_records_dropped current_input_1_watermark current_input_2_watermark current_output_watermark "
    "num_splits_processed commits_succeeded commits_failed, double records_lag_max records_consumed_rate "
    "bytes_consumed_rate"
)


def _data_access() -> FileDescriptorProto:
    file = _file("data_access_event.proto", ("FsEvent", _FS))
    status = file.message_type[0].enum_type.add(name="Status")
    for number, name in enumerate(("UNKNOWN", "FAILURE", "SUCCESS")):
        status.value.add(name=name, number=number)
    return file


def _jvm_statistics() -> FileDescriptorProto:
    file = _file("jvm_statistics_event.proto", ("JVMStatisticsData", []), ("GCStatisticsData", _GC))
    statistics = file.message_type[0]
    scope = f".{PACKAGE}.JVMStatisticsData"
    settings = statistics.nested_type.add(name="Property")
    for text in numbered("string name value"):
        add_field(settings, text)
    section = statistics.nested_type.add(name="Section")
    add_field(section, "string name 1")
    add_field(section, f"repeated {scope}.Property property 2")
    add_field(statistics, f"repeated {scope}.Section section 1")
    return file


def garmadon_files() -> list[FileDescriptorProto]:
    return [
        _file("event_header.proto", ("Header", _HEADER)),
        _data_access(),
        _jvm_statistics(),
        _file("container_event.proto", ("ContainerResourceEvent", numbered("string type, uint64 limit, float value"))),
        _file("resourcemanager_event.proto", ("ApplicationEvent", _APPLICATION), ("ContainerEvent", _CONTAINER)),
        _file("spark_event.proto", ("TaskEvent", _SPARK_TASK)),
        _file("flink_event.proto", ("TaskEvent", _FLINK_TASK), ("OperatorEvent", _FLINK_OPERATOR)),
        _file("state_event.proto", ("StateEvent", ["string state 1"])),
    ]


def descriptor_set(files: Iterable[FileDescriptorProto]) -> bytes:
    return FileDescriptorSet(file=files).SerializeToString()


def garmadon_descriptors() -> bytes:
    return descriptor_set(garmadon_files())


def write_descriptors(path: Path) -> Path:
    """The same as a file, for a job that names it."""
    path.write_bytes(garmadon_descriptors())
    return path


def named(message: str, file: str = "") -> MessageName:
    return MessageName(f"{PACKAGE}.{message}", file)


HEADER = named("Header")
BODIES: Mapping[int, MessageName] = {
    1: named("FsEvent"),
    1000: named("GCStatisticsData"),
    1001: named("JVMStatisticsData"),
    2000: named("ContainerResourceEvent"),
    3003: named("TaskEvent", "spark_event.proto"),
    4000: named("ApplicationEvent"),
    4001: named("ContainerEvent"),
    5003: named("TaskEvent", "flink_event.proto"),
    5004: named("OperatorEvent"),
}
"""By type marker."""


def serialised(descriptors: bytes, message: MessageName, **fields: Any) -> bytes:
    """A message as a producer would send it."""
    made: bytes = GetMessageClass(find_message(descriptors, message))(**fields).SerializeToString()
    return made


def event(marker: int, timestamp_ms: int, header: bytes, body: bytes) -> bytes:
    """The value of a record: the envelope around header and body."""
    return struct.pack(">iqii", marker, timestamp_ms, len(header), len(body)) + header + body
