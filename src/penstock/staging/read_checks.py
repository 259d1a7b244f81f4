"""What must hold of the records that a batch read before it may be committed."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import TransientError, UserError
from penstock.flow.write.manifest import Counts, Reason
from penstock.job.spec import JobSpec
from penstock.logs.log import Batch, Log, Slice
from penstock.staging.bad_share import BadShareError
from penstock.staging.reports import Gathered

JUDGED_RECORDS_MIN = 100
"""Smaller batches are not judged by their share of bad records."""


class ReadChecks:
    """What must hold of the records that a batch read before it may be committed (RULES P2)."""

    def __init__(self, job: JobSpec, log: Log) -> None:
        self._job = job
        self._log = log
        self._compacted: dict[str, bool | None] = {}

    def check(self, batch: Batch, gathered: Gathered) -> None:
        """What must hold before the commit."""
        if gathered.first_error and self._job.on.bad_record == "fail":
            hint = "fix the schema, or set `on.bad_record: quarantine`"
            raise UserError(f"a record cannot be written: {gathered.first_error}", hint=hint)
        self.refuse_bad_share(gathered.total, gathered.reasons)
        for piece in batch.slices:
            self.check_count(piece, sum(share.counts.read for share in gathered.of(piece.partition).values()))

    def refuse_bad_share(self, total: Counts, reasons: Sequence[Reason]) -> None:
        """Stop before the commit if more records of a batch are bad than the job accepts."""
        share_max = self._job.on.bad_share
        if total.read >= JUDGED_RECORDS_MIN and total.quarantined > share_max * total.read:
            raise BadShareError(total, share_max, reasons)

    def check_count(self, piece: Slice, read: int) -> None:
        """Every offset of the slice has a record, unless the topic may have holes."""
        missing = piece.end - piece.read_from - read
        if missing < 0:
            raise TransientError(f"{piece.partition} has more records than offsets in {piece}")
        if missing and not self.holes_allowed(piece.partition.topic):
            raise UserError(
                f"{piece.partition}: {missing} offsets from {piece.read_from} to {piece.end - 1} have no record",
                detail="the topic is not compacted, and the job file does not declare it as written in transactions",
                hint="set `log.kafka.transactional: true` if its producers use transactions; else data is missing",
            )

    def holes_allowed(self, topic: str) -> bool:
        """Whether offsets may have no record: compacted topics, and those written in transactions."""
        if self._job.log.transactional:
            return True
        if topic not in self._compacted:
            self._compacted[topic] = self._log.compacted(topic)
        return self._compacted[topic] is not False
