"""The record that says how far a bucket is published: one versioned JSON object in the positions topic."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.errors import InvariantError, UserError
from penstock.publish.output import PublishBucket, PublishPosition

VERSION = 2


class _Head(msgspec.Struct, frozen=True):
    kind: str
    v: int


class _Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["published"] = "published"
    v: Literal[2] = 2
    job: str
    bucket: int
    buckets: int
    table: str
    close: int
    after: str


def encode_position(bucket: PublishBucket, position: PublishPosition) -> bytes:
    return msgspec.json.encode(
        _Published(
            job=bucket.job,
            bucket=bucket.number,
            buckets=bucket.count,
            table=bucket.table,
            close=position.close,
            after=position.after,
        )
    )


def decode_position(bucket: PublishBucket, content: bytes | None) -> PublishPosition | None:
    """The position that a record under the bucket's key states; None if it is of another life of the table."""
    if content is None:
        return None
    found = _decoded(bucket, content)
    if (found.job, found.bucket) != (bucket.job, bucket.number):
        raise InvariantError(
            f"the published position of {bucket} speaks of another bucket", detail=f"{found.job}/{found.bucket}"
        )
    if found.table != bucket.table:
        return None
    if found.buckets != bucket.count:
        raise UserError(
            f"job {bucket.job} has published in {found.buckets} buckets, its file says {bucket.count}",
            detail="positions are kept per bucket, and rows would change theirs",
            hint=f"set publish.buckets to {found.buckets}: it stays as it is for the life of the table",
        )
    return PublishPosition(found.close, found.after)


def _decoded(bucket: PublishBucket, content: bytes) -> _Published:
    try:
        head = msgspec.json.decode(content, type=_Head)
        if (head.kind, head.v) != ("published", VERSION):
            raise InvariantError(
                f"the published position of {bucket} is a record {head.kind} of version {head.v}, not {VERSION}",
                hint="another version of Penstock wrote it: use that one",
            )
        return msgspec.json.decode(content, type=_Published)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvariantError(f"the published position of {bucket} cannot be read", detail=str(error)) from None
