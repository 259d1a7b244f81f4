"""Any kind of table is proved in the same frame; what one does not have, it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.state import DeltaPartition, Totals
from penstock.lake.storage import open_storage
from penstock.logs.log import Partition
from penstock.logs.memory import MemoryLog
from penstock.proof.findings import Unproven, Verdict
from penstock.proof.frame import Provable, prove
from penstock.proof.invariants import check_totals, spans
from penstock.proof.offsets.owners import TopicIncarnations
from penstock.proof.sources import Depth, Sample, Sources, Subject, TypeFiles
from penstock.tables.registry import kind_of
from penstock.verify import verify
from tests.small_table import small_job

ZERO = Partition("orders", "id", 0)


def counted(folder: Path, read: int) -> Provable:
    """A kind of table that only counts, as a test makes it up."""
    states = {ZERO: DeltaPartition(position=4, token=1, origin=0, totals=Totals(read=read, filtered=read))}
    incarnations = TopicIncarnations((ZERO,), fingerprints={"orders": topic_fingerprint("id")})
    storage = open_storage(str(folder), {})
    return Provable(
        version=9,
        states=states,
        subject=Subject({each: spans(each, state, ()) for each, state in states.items()}, incarnations),
        sources=Sources(storage, [TypeFiles(())], storage, (), columns=None),
        own_checks=lambda offsets: [check_totals(states)],
        values=lambda: Unproven("the values: there are none", "count again"),
    )


def test_the_checks_of_a_kind_come_before_those_of_offsets_log_records_and_values(tmp_path: Path) -> None:
    log = MemoryLog({ZERO: dict.fromkeys(range(5), b"{}")})
    job = small_job("127.0.0.1:1", "orders", tmp_path)
    found = prove(job, Depth(values=Sample(None)), lambda _: log, counted(tmp_path, 4))
    assert (found.version, [each.name for each in found.checks]) == (
        9,
        ["totals", "offsets", "log", "records", "values"],
    )
    verdicts = {each.name: each.verdict for each in found.checks}
    assert (verdicts["totals"], verdicts["records"]) == (Verdict.PROVEN, Verdict.PROVEN)
    assert (verdicts["offsets"], verdicts["values"]) == (Verdict.NOT_PROVEN, Verdict.NOT_PROVEN)


def test_a_kind_that_counts_wrongly_is_found_by_its_totals_and_by_the_log(tmp_path: Path) -> None:
    log = MemoryLog({ZERO: dict.fromkeys(range(5), b"{}")})
    job = small_job("127.0.0.1:1", "orders", tmp_path)
    found = prove(job, Depth(), lambda _: log, counted(tmp_path, 3))
    assert [each.name for each in found.checks if each.verdict is Verdict.VIOLATED] == ["totals", "records"]


def test_a_table_without_a_ledger_refuses_to_read_it_again_and_to_make_it_again(tmp_path: Path) -> None:
    job = small_job("127.0.0.1:1", "orders", tmp_path)
    log = MemoryLog({})
    with pytest.raises(UserError, match="no ledger"):
        verify(job, every_entry=True, open_log=lambda _: log)
    with pytest.raises(UserError, match="no export"):
        kind_of(job).rebuild(job, log, Environment())
