"""The table of a rollup: partials that carry the positions, and chores that make closed windows of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.environment import Environment
from penstock.flow.write.report import Share
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.lake.proposal import GivenUpPart, Outcome, Proposal, StartPart
from penstock.lake.state import Numbers
from penstock.logs.log import Partition
from penstock.tables.kind import Chore, View
from penstock.tables.rollup.closing.closing import Closing
from penstock.tables.rollup.partials.schema import EPOCH, close_key
from penstock.tables.rollup.publishing.publishing import Publish, Publishing
from penstock.tables.rollup.spec import RollupSpec, partials_job
from penstock.tables.single.table import SingleTable


class RollupTable(SingleTable):
    """Batches land as partials; what is closed, published and cleaned are chores."""

    def __init__(
        self,
        job: JobSpec[RollupSpec],
        data: Table,
        closing: Closing,
        publishing: Publishing | None,
        environment: Environment,
    ) -> None:
        super().__init__(partials_job(job), data, environment)
        self.stamps = {EPOCH: close_key(job.name)}
        self.closing = closing
        self.publishing = publishing

    def commit(self, proposal: Proposal) -> Outcome:
        """Let a partition that starts, or passes over what was given up, become idle `idle_after` later (RULES W1)."""
        moved = Numbers(
            peaks=dict.fromkeys(("moved_ms", "last_point_ms"), self._now_ms()), latest={"read_to_end_ms": 0}
        )
        parts = tuple(
            replace(each, numbers=moved) if isinstance(each, StartPart | GivenUpPart) else each
            for each in proposal.parts
        )
        return super().commit(replace(proposal, parts=parts))

    def numbers(self, share: Share, read_to_end_at: float | None = None) -> Numbers:
        """A time that the clock has not reached is not seen yet: it would make the points of now late."""
        now_ms = self._now_ms()
        peaks = {"moved_ms": now_ms}
        if share.event_ms_max is not None:
            peaks |= {"event_ms": min(share.event_ms_max, now_ms), "last_point_ms": now_ms}
        return Numbers(share.sums, peaks, {"read_to_end_ms": int((read_to_end_at or 0) * 1000)})

    def chores(self, view: View) -> Sequence[Chore]:
        """What is closed is published first; while much waits to be published, closing takes turns with it."""
        publish: Sequence[Chore] = () if self.publishing is None else self.publishing.chores(view)
        return [*publish, *self.closing.chores(view)]

    def perform(self, chore: Chore) -> None:
        if isinstance(chore, Publish):
            assert self.publishing is not None
            self.publishing.perform()
        else:
            self.closing.perform(chore)

    def lags(self, partitions: Iterable[Partition]) -> bool:
        return self.closing.lags() or (self.publishing is not None and self.publishing.lags())

    def close(self) -> None:
        if self.publishing is not None:
            self.publishing.close()

    def _now_ms(self) -> int:
        return int(self.environment.now() * 1000)
