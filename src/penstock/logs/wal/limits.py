"""The named bounds of a WAL server (I6)."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB, GIB = 1024, 1024**2, 1024**3


@dataclass(frozen=True, slots=True)
class WalLimits:
    """What the store keeps and what one request may ask for."""

    partition_bytes_max: int = 4 * GIB
    """With so many unread bytes, a partition refuses appends until jobs have read on."""
    reserve_bytes: int = 64 * MIB
    """Disk space kept in a file of its own, for positions and trimming once the disk is full."""
    retention_seconds: float = 86_400.0
    """How long records stay after every job has committed them, unless their space is needed."""
    dedup_seconds: float = 3_600.0
    dedup_keys_max: int = 100_000
    """Per partition: how many client keys are remembered, and for how long; what is reached first counts."""
    record_bytes_max: int = MIB
    """Of one record: key, value and headers together."""
    body_bytes_max: int = 16 * MIB
    append_bytes_max: int = 32 * MIB
    append_records_max: int = 100_000
    """Of one request: its body, its records as they are stored, and their number."""
    in_flight_bytes_max: int = 256 * MIB
    """Of all requests that are being answered: their bodies, and the records that they are sent."""
    response_bytes_max: int = 4 * MIB
    """Of an answer with records, which holds at least one append."""
    connections_max: int = 256
    request_seconds_max: float = 60.0
    """From the first byte of a request to the last of its answer, and between requests of a connection."""
    topics_max: int = 1_000
    partitions_max: int = 256
    """Of a topic."""
    jobs_max: int = 1_000
    retry_after_seconds: int = 5
    """What a client is told when there is no space."""
