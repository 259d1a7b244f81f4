"""Deletion vectors of Delta: the rows of a file that are deleted, as a bitmap in a file next to the data. Pure.

A file of vectors is a version byte, then for each vector its length (big-endian), the magic number (little-endian), a
64-bit Roaring bitmap in the portable format, and a CRC-32 (big-endian) over magic number and bitmap. Its name has a
digest of its bytes, and its folder the name of a staged file, so that vacuum knows which commit may refer to it.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import IO, Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from penstock.errors import InvariantError
from penstock.flow.write.manifest import Vector
from penstock.flow.write.names import SUFFIX

VECTORS_PROPERTY = "delta.enableDeletionVectors"
"""The table property with which writers may mark rows; files that have vectors already keep them without it."""
VECTORS_FEATURE = "deletionVectors"
"""The table feature with which files may have vectors."""
Rows = npt.NDArray[np.int64]
"""Numbers of rows of a file, ascending."""
_VERSION = b"\x01"
_MAGIC = struct.pack("<I", 1681511377)
_NAME = re.compile(r"(?P<folder>[^/]+)/deletion_vector_(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.bin")
_ID_LETTERS = 20
"""Of the id in Z85, after the name of the folder."""
_PYTHON = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_PYTHON, _Z85), bytes.maketrans(_Z85, _PYTHON)


def bitmap_of(rows: Rows) -> bytes:
    return BitMap64(rows.astype(np.uint64)).serialize()


def vectors_file(name: str, bitmaps: Sequence[tuple[bytes, int]]) -> tuple[bytes, list[Vector]]:
    """The bytes of a file with these bitmaps, each with the number of its rows, and the vectors in it.

    `name` is a fresh name of a staged file.
    """
    data, places = bytearray(_VERSION), []
    for bitmap, rows in bitmaps:
        body = _MAGIC + bitmap
        places.append((len(data), len(body), rows))
        data += struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    path = f"{name.removesuffix(SUFFIX)}/deletion_vector_{_digest(data)}.bin"
    return bytes(data), [Vector(path, *place) for place in places]


def read_vector(vector: Vector, file: IO[bytes]) -> Rows:
    """The rows that a vector deletes, out of its file; `InvariantError` if they are damaged."""
    file.seek(vector.offset)
    part = file.read(vector.size_bytes + 8)
    body = part[4:-4]
    intact = part[:4] == struct.pack(">I", vector.size_bytes) and part[-4:] == struct.pack(">I", zlib.crc32(body))
    if not intact or body[:4] != _MAGIC:
        raise InvariantError(f"{vector.path} has no intact deletion vector at {vector.offset}")
    rows = np.array(BitMap64.deserialize(body[4:]).to_array(), np.int64)
    if len(rows) != vector.rows:
        raise InvariantError(f"a deletion vector of {vector.path} has {len(rows)} rows, the table {vector.rows}")
    return rows


def has_own_name(path: str, data: bytes) -> bool:
    """Whether a file of vectors has the bytes that its name states."""
    match = _NAME.fullmatch(path)
    return match is not None and _digest(data) == UUID(match["id"])


def staged_as(path: str) -> str:
    """The name whose rules a file follows: of a file of vectors that of its folder, else its own."""
    match = _NAME.fullmatch(path)
    return path if match is None else f"{match['folder']}{SUFFIX}"


def to_log(vector: Vector) -> dict[str, Any]:
    """The field `deletionVector` of an action in the log."""
    match = _NAME.fullmatch(vector.path)
    assert match is not None
    place = match["folder"] + base64.b85encode(UUID(match["id"]).bytes).translate(_TO_Z85).decode()
    return {
        "storageType": "u",
        "pathOrInlineDv": place,
        "offset": vector.offset,
        "sizeInBytes": vector.size_bytes,
        "cardinality": vector.rows,
    }


def from_log(field: Mapping[str, Any]) -> Vector:
    """The vector of that field. Those that are elsewhere than next to the data are kept as they are: unreadable."""
    place = str(field["pathOrInlineDv"])
    if field["storageType"] == "u":
        folder, letters = place[:-_ID_LETTERS], place[-_ID_LETTERS:].encode().translate(_FROM_Z85)
        place = f"{folder}{'/' if folder else ''}deletion_vector_{UUID(bytes=base64.b85decode(letters))}.bin"
    return Vector(place, field.get("offset") or 0, field["sizeInBytes"], field["cardinality"])


def _digest(data: bytes | bytearray) -> UUID:
    return UUID(bytes=hashlib.blake2b(data, digest_size=16).digest())
