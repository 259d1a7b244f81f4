"""A second verification reads only the entries that the first has not proved, and finds the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from penstock.storage import open_storage
from penstock.tables.parquet.compact import compact
from penstock.tables.parquet.state import LedgerState
from penstock.verify.export import keep_for_next
from penstock.verify.export_facts import LedgerFacts, read_ledger
from penstock.verify.findings import OffenceKind, Verdict
from penstock.verify.proved import encode_proved, read_proved
from tests.export_root import MONDAY, ONE, WEDNESDAY, ZERO, ExportRoot
from tests.unit.verify.damaged import append_bad, at, bad_root, facts_of, failed, first_offence, judged


def verified(root: ExportRoot) -> LedgerFacts:
    """A verification that proves everything and keeps that."""
    facts = facts_of(root.job)
    checks = judged(root.job, facts)
    assert failed(checks) == []
    keep_for_next(facts, checks.values())
    return facts


def proved_number(root: ExportRoot) -> int:
    return int(json.loads((root.lake / "_penstock/shop/proved.json").read_bytes())["number"])


def go_on(root: ExportRoot) -> LedgerState:
    """A catch-up, a compaction and further batches."""
    root.write(ZERO, 34, 50, {("order", WEDNESDAY): range(34, 40)}, left={"click": range(40, 50)})
    root.catch_up(ZERO, {"click": 40}, 50, {("click", WEDNESDAY): range(40, 50)})
    compact(root.open())
    root.write(ONE, 34, 40, {("order", WEDNESDAY): range(34, 40)})
    return root.state


def test_what_is_proved_comes_back_as_it_was_and_leads_to_the_same_verdict(root: ExportRoot) -> None:
    go_on(root)
    facts = verified(root)
    kept = read_proved(open_storage(str(root.lake), {}), root.table.places.proved)
    assert kept is not None
    assert kept.chain == facts.chain
    assert json.loads(encode_proved(kept)) == json.loads((root.lake / "_penstock/shop/proved.json").read_bytes())
    root.write(ZERO, 50, 60, {("order", MONDAY): range(50, 60)})
    newer = facts_of(root.job)
    assert newer.last is not None
    assert newer.last.number == root.state.number
    assert root.job.export is not None
    whole = read_ledger(root.job, root.job.export, from_first=True)
    assert isinstance(whole, LedgerFacts)
    assert newer.chain == whole.chain
    assert judged(root.job, newer) == judged(root.job, whole)


def test_proved_entries_are_not_read_again(root: ExportRoot) -> None:
    verified(root)
    known = proved_number(root)
    root.table.ledger.keep_snapshot(root.state)
    go_on(root)
    for entry in (root.lake / "_penstock/shop/ledger").glob("*.json"):
        if int(entry.stem) < known:
            entry.write_bytes(b"gone")
    assert failed(judged(root.job)) == []
    assert root.job.export is not None
    whole = read_ledger(root.job, root.job.export, from_first=True)
    assert isinstance(whole, LedgerFacts)
    assert not whole.slices.ok, "a verification that is not shallow reads them all"


def test_damage_to_files_that_were_proved_is_still_found(root: ExportRoot) -> None:
    verified(root)
    (root.lake / "click" / f"day={MONDAY}" / "shop.0.19.parquet").unlink()
    checks = judged(root.job)
    assert failed(checks) == ["rows", "offsets"]
    assert first_offence(checks) == at(0, 16, OffenceKind.MISSING)
    keep_for_next(facts_of(root.job), checks.values())
    assert failed(judged(root.job)) == ["rows", "offsets"]


def test_what_could_not_be_judged_says_nothing_against_the_entries(root: ExportRoot) -> None:
    facts = facts_of(root.job)
    checks = judged(root.job, facts)
    keep_for_next(facts, [*checks.values(), replace(checks["rows"], verdict=Verdict.VIOLATED)])
    assert not (root.lake / "_penstock/shop/proved.json").exists()
    keep_for_next(facts, [*checks.values(), replace(checks["rows"], verdict=Verdict.NOT_PROVEN)])
    assert proved_number(root) == root.state.number


def test_bad_records_that_wait_to_be_appended_are_not_passed_over(tmp_path: Path) -> None:
    root = bad_root(tmp_path)
    facts = facts_of(root.job)
    keep_for_next(facts, judged(root.job, facts).values())
    assert not (root.lake / "_penstock/shop/proved.json").exists()
    append_bad(root)
    verified(root)
    assert proved_number(root) == root.state.number


def test_a_day_that_is_deleted_later_is_learnt_once(root: ExportRoot) -> None:
    verified(root)
    shutil.rmtree(root.lake / "order" / f"day={MONDAY}")
    root.write(ONE, 34, 40, {("order", WEDNESDAY): range(34, 40)})
    assert verified(root).chain.deleted
    root.write(ONE, 40, 50, {("order", WEDNESDAY): range(40, 50)})
    assert facts_of(root.job).chain.deleted_rows == {("order", MONDAY): 36}
    assert proved_number(root) == root.state.number - 1
    assert failed(judged(root.job)) == []


def test_what_was_proved_of_another_chain_is_passed_over(root: ExportRoot, tmp_path: Path) -> None:
    verified(root)
    path = root.lake / "_penstock/shop/proved.json"
    body = json.loads(path.read_bytes())
    for change in ({"batch": "another"}, {"number": 999}, {"v": 2}, {"tracks": None}):
        path.write_text(json.dumps({**body, **change}))
        facts = facts_of(root.job)
        assert facts.last is not None, "all entries were read"
        assert failed(judged(root.job, facts)) == []
    path.write_text("torn")
    assert failed(judged(root.job)) == []
