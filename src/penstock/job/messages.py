"""Descriptor sets: the message that a job names, and the columns that it becomes.

Every file of a set gets a descriptor pool of its own, with its imports: two files of one set may define the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from penstock.errors import UserError
from penstock.job.faults import nearest, shown
from penstock.job.schema import NESTING_MAX, name_findings
from penstock.job.texts import MessageName

TIMESTAMP_MESSAGE = "google.protobuf.Timestamp"
ENVELOPE_TIME = "timestamp"
"""The column of the envelope's own time, in milliseconds."""
HEAP_SCHEMA = pa.schema([(name, pa.int64()) for name in ("init", "committed", "used", "max")])
FILE_SYSTEM_FIELDS = ("src_path", "dst_path", "uri")

_SETS_KEPT_MAX = 16
_MESSAGES_KEPT_MAX = 512
SCALARS: dict[int, pa.DataType] = {
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    # Neither Spark nor Delta has unsigned types: 64 bits keep their pattern, 32 bits fit.
    FieldDescriptor.TYPE_UINT64: pa.int64(),
    FieldDescriptor.TYPE_FIXED64: pa.int64(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_SINT32: pa.int32(),
    FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
    FieldDescriptor.TYPE_ENUM: pa.string(),
}


@lru_cache(maxsize=_MESSAGES_KEPT_MAX)
def find_message(descriptors: bytes, message: MessageName) -> Descriptor:
    """The message in its own pool; raises `UserError` if the set does not define it, or several files do."""
    files = files_of(descriptors)
    homes = [name for name, file in files.items() if message.name in _message_names(file)]
    if message.file:
        if message.file not in files:
            raise UserError(f"the descriptor set has no file {shown(message.file)}", hint=nearest(message.file, files))
        homes = [name for name in homes if name == message.file]
    if not homes:
        raise _unknown(message, files)
    if len(homes) > 1:
        raise UserError(
            f"{len(homes)} files of the descriptor set define {message.name}",
            detail=f"files: {', '.join(homes)}",
            hint="write file.proto:package.Name",
        )
    pool = DescriptorPool()
    _add(pool, homes[0], files, set())
    return pool.FindMessageTypeByName(message.name)


@lru_cache(maxsize=_MESSAGES_KEPT_MAX)
def message_schema(descriptors: bytes, message: MessageName) -> pa.Schema:
    """One column per field, in the order of the descriptor; raises `UserError` if a table cannot hold the message."""
    descriptor = find_message(descriptors, message)
    fields = _fields(descriptor, (descriptor.full_name,))
    if not fields:
        raise UserError(f"the message {message.name} has no fields: there is nothing to write")
    return pa.schema(fields)


@lru_cache(maxsize=_MESSAGES_KEPT_MAX)
def garmadon_schema(descriptors: bytes, header: MessageName, body: MessageName) -> pa.Schema:
    """The columns of the header, of the body, and the envelope's time; two of one name are a `UserError`."""
    descriptor = find_message(descriptors, body)
    of_body = HEAP_SCHEMA if is_heap(descriptor) else pa.schema(_fields(descriptor, (descriptor.full_name,)))
    places = [
        (header.name, message_schema(descriptors, header)),
        (body.name, of_body),
        ("the envelope", pa.schema([(ENVELOPE_TIME, pa.int64())])),
    ]
    owner: dict[str, str] = {}
    for place, schema in places:
        for name in schema.names:
            other = owner.setdefault(name.casefold(), place)
            if other != place:
                message = f"{place} and {other} both have a field {name}: a flat row can hold one"
                raise UserError(message, hint="rename the field in one of the messages; case makes no difference")
    return pa.schema([field for _, schema in places for field in schema])


def is_heap(body: Descriptor) -> bool:
    """Whether a body is a JVM's statistics; its rows hold the section `heap`."""
    return body.name == "JVMStatisticsData" and "section" in body.fields_by_name


def is_file_system(body: Descriptor) -> bool:
    """Whether a body is an access to a file system, whose paths are written without the cluster that the uri names."""
    fields = [body.fields_by_name.get(name) for name in FILE_SYSTEM_FIELDS]
    return body.name == "FsEvent" and all(
        field and field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated for field in fields
    )


def map_entry(field: FieldDescriptor) -> Descriptor | None:
    """Of a field that is a map: the message of its `key` and `value`."""
    entry = field.message_type
    return entry if entry is not None and entry.GetOptions().map_entry else None


@lru_cache(maxsize=_SETS_KEPT_MAX)
def files_of(descriptors: bytes) -> Mapping[str, FileDescriptorProto]:
    """The files of a descriptor set by name. Raises `UserError` if the bytes are not a descriptor set."""
    try:
        files = list(FileDescriptorSet.FromString(descriptors).file)
    except DecodeError:
        files = []
    # Other bytes may parse at random, and none always do.
    if not files or not all(file.name for file in files):
        hint = "make one with protoc --include_imports --descriptor_set_out=FILE"
        raise UserError("the descriptors are not a descriptor set", hint=hint)
    return {file.name: file for file in files}


def _unknown(message: MessageName, files: Mapping[str, FileDescriptorProto]) -> UserError:
    names = [name for file in ([message.file] if message.file else files) for name in _message_names(files[file])]
    same_end = [name for name in names if name.rpartition(".")[2] == message.name.rpartition(".")[2]]
    return UserError(
        f"no message {shown(message.name)} in {message.file or 'the descriptor set'}",
        hint=f"did you mean {same_end[0]}?" if same_end else nearest(message.name, names),
    )


def _message_names(file: FileDescriptorProto) -> Iterator[str]:
    waiting: list[tuple[str, DescriptorProto]] = [(file.package, item) for item in file.message_type]
    while waiting:
        scope, message = waiting.pop(0)
        if not message.options.map_entry:
            name = f"{scope}.{message.name}" if scope else message.name
            yield name
            waiting += [(name, nested) for nested in message.nested_type]


def _add(pool: DescriptorPool, name: str, files: Mapping[str, FileDescriptorProto], added: set[str]) -> None:
    """Put a file after its imports into the pool."""
    if name in added:
        return
    added.add(name)
    for imported in files[name].dependency:
        if imported not in files:
            raise UserError(
                f"the descriptor set lacks {imported}, which {name} imports",
                hint="make the set with protoc --include_imports",
            )
        _add(pool, imported, files, added)
    try:
        pool.Add(files[name])
    except TypeError as error:
        raise UserError(f"the file {name} of the descriptor set cannot be used", detail=str(error)) from None


def _fields(message: Descriptor, path: tuple[str, ...]) -> list[pa.Field]:
    """The columns of a message; `path` holds the messages around it, itself last."""
    for fault in name_findings({field.name: (field.full_name,) for field in message.fields}):
        raise UserError(f"the field {fault.key[0]} cannot be a column", detail=fault.message)
    return [pa.field(field.name, _type(field, path)) for field in message.fields]


def _type(field: FieldDescriptor, path: tuple[str, ...]) -> pa.DataType:
    entry = map_entry(field)
    if entry is not None:
        return pa.map_(*(_single(entry.fields_by_name[name], path) for name in ("key", "value")))
    return pa.list_(_single(field, path)) if field.is_repeated else _single(field, path)


def _single(field: FieldDescriptor, path: tuple[str, ...]) -> pa.DataType:
    message = field.message_type
    if message is None:
        return SCALARS[field.type]
    if message.full_name == TIMESTAMP_MESSAGE:
        return pa.timestamp("us", "UTC")
    if message.full_name in path:
        raise UserError(
            f"the message {message.full_name} contains itself: a table cannot hold it",
            detail=f"by way of {field.full_name}",
        )
    if len(path) == NESTING_MAX:
        raise UserError(f"more than {NESTING_MAX} levels of nested messages", detail=f"at {field.full_name}")
    inner = _fields(message, (*path, message.full_name))
    if not inner:
        raise UserError(f"the message {message.full_name} has no fields: a table cannot hold it")
    return pa.struct(inner)
