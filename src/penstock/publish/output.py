"""The interface of outputs: each publishes one bucket of rows, in transactions that carry their position.

The position of a bucket is one versioned JSON object in the positions topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import msgspec

from penstock.errors import InvariantError

VERSION: Final = 3
"""Version of the position record."""
PUBLISH_STEPS = ("publish_sent", "publish_committed")
"""The failpoints of `PublishOutput.publish`; a kind of table that publishes lists them too."""
RECORDS_PER_TRANSACTION = 10_000
"""Enough that the cost of a transaction is small, and few enough to send again."""


class OutputRecord(msgspec.Struct, frozen=True, gc=False):
    """One record of the topic; records with equal keys keep their order. Made by the million, so a cheap struct."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class PublishPosition:
    """Where publishing continues: all rows of earlier closes are published, and those of this close up to a key.

    It is a key and not a row number, because a later close may replace rows before it; the others keep their keys.
    """

    close: int
    after: str = ""
    """The key of the last published row of the close, in a form that the table chooses; empty: none."""


@dataclass(frozen=True, slots=True)
class PublishBucket:
    """A share of a job's rows that one producer at a time publishes, in order."""

    job: str
    table: str
    """Fingerprint of the table; a recreated table has another one, and ignores the positions of the old table."""
    number: int
    count: int
    """The number of buckets, fixed as long as the table exists."""

    @property
    def key(self) -> str:
        """The key of its position record, the same in every incarnation of the table."""
        return f"{self.job}/{self.number}"

    @property
    def transactional_id(self) -> str:
        return f"penstock/{self.key}"

    def __str__(self) -> str:
        return f"bucket {self.number} of job {self.job}"


class PublishOutput(Protocol):
    """Publishes the rows of one bucket. Used by one thread.

    Any error closes the output: `open` then shows whether its last transaction was committed.

    - `FencedError`: a newer producer has this bucket; stop until the bucket is claimed again.
    - `TransientError`: open again and continue from the position.
    - `UserError`: a topic, a permission or a record's size has to be changed first.
    """

    def check(self) -> None:
        """Raise `UserError` if there is nothing to publish to; before the job creates its tables."""

    def open(self) -> PublishPosition | None:
        """Fence older producers of this bucket, then return the committed position; None: nothing was published."""

    def publish(self, records: Sequence[OutputRecord], position: PublishPosition) -> None:
        """Make the records visible and move the position in one transaction, or neither; waits for the outcome."""

    def close(self) -> None:
        """Close the producer; an open transaction is aborted."""


class _Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record in the positions topic."""

    kind: Literal["published"] = "published"
    v: Literal[3] = VERSION
    job: str
    bucket: int
    table: str
    close: int
    after: str


def encode_position(bucket: PublishBucket, position: PublishPosition) -> bytes:
    return msgspec.json.encode(
        _Published(job=bucket.job, bucket=bucket.number, table=bucket.table, close=position.close, after=position.after)
    )


def decode_position(bucket: PublishBucket, content: bytes | None) -> PublishPosition | None:
    """The position in a record of the bucket's key; None if it is of another incarnation of the table."""
    if content is None:
        return None
    try:
        record = msgspec.json.decode(content, type=_Published)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvariantError(
            f"the published position of {bucket} is not a record of version {VERSION}",
            detail=str(error),
            hint="if another version of Penstock wrote it, use that one",
        ) from None
    if (record.job, record.bucket) != (bucket.job, bucket.number):
        raise InvariantError(
            f"the published position of {bucket} names another bucket", detail=f"{record.job}/{record.bucket}"
        )
    return PublishPosition(record.close, record.after) if record.table == bucket.table else None
