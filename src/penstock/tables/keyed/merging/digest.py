"""128 bits that stand for rows: keys, values and sequences, the same in every version of every library (RULES K4).

What is hashed can be read back, so that different rows never give the same bytes: each name and type has its length
before it, each null mask a byte that says whether it is there, and every other length follows from what came before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DIGEST_BYTES = 16


def digest_of(rows: pa.Table) -> str:
    """The digest of rows in their order, as hex. A column without a value does not count: it may be younger."""
    whole = hashlib.blake2b(digest_size=DIGEST_BYTES)
    whole.update(rows.num_rows.to_bytes(8, "little"))
    _add_fields(whole, ((name, _whole(rows.column(name))) for name in sorted(rows.schema.names)))
    return whole.hexdigest()


def _whole(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array.chunk(0) if isinstance(array, pa.ChunkedArray) else array


def _add_fields(whole: hashlib.blake2b, fields: Iterable[tuple[str, pa.Array]]) -> None:
    """Columns, or the members of a struct, in the order of their names; those without a value do not count."""
    for name, values in fields:
        if values.null_count < len(values):
            _add_text(whole, name)
            _add(whole, values)
    # No name is empty: this ends the list of fields.
    _add_text(whole, "")


def _add_text(whole: hashlib.blake2b, text: str) -> None:
    data = text.encode()
    whole.update(len(data).to_bytes(4, "little") + data)


def _add(whole: hashlib.blake2b, values: pa.Array) -> None:
    """Values, whose number is known from what was added before."""
    kind = values.type
    # Readers name the parts of nested types in several ways.
    _add_text(whole, "struct" if pa.types.is_struct(kind) else "list" if pa.types.is_nested(kind) else str(kind))
    if values.null_count:
        whole.update(b"\x01" + np.packbits(values.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    else:
        whole.update(b"\x00")
    if pa.types.is_struct(kind):
        numbers = sorted(range(kind.num_fields), key=lambda number: kind.field(number).name)
        _add_fields(whole, ((kind.field(number).name, pc.struct_field(values, number)) for number in numbers))
    elif pa.types.is_nested(kind):
        _add_lists(whole, values)
    elif _is_bytes(kind):
        present = values.drop_null().cast(pa.large_binary())
        whole.update(pc.binary_length(present).to_numpy(zero_copy_only=False).astype(np.int64).tobytes())
        whole.update(_joined(present))
    elif pa.types.is_decimal(kind):
        _add(whole, values.drop_null().cast(pa.string()))
    elif pa.types.is_boolean(kind):
        whole.update(np.packbits(values.drop_null().to_numpy(zero_copy_only=False)).tobytes())
    else:
        present = values.drop_null()
        if pa.types.is_temporal(kind):
            present = present.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        whole.update(np.ascontiguousarray(present.to_numpy(zero_copy_only=False)).tobytes())


def _add_lists(whole: hashlib.blake2b, values: pa.Array) -> None:
    if pa.types.is_map(values.type):
        pairs = pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])
        values = values.cast(pa.list_(pairs))
    present = values.drop_null()
    whole.update(pc.list_value_length(present).to_numpy(zero_copy_only=False).astype(np.int64).tobytes())
    _add(whole, pc.list_flatten(present))


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _joined(values: pa.Array) -> bytes:
    """The bytes of all values in a row."""
    offsets, data = values.buffers()[1], values.buffers()[2]
    if data is None or not len(values):
        return b""
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    return bytes(data[int(ends[0]) : int(ends[-1])])
