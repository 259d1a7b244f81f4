"""A second verification reads only the entries that the first has not proved, and finds the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.job.spec import job_of
from penstock.lake.storage import open_storage
from penstock.logs.log import Bounds
from penstock.logs.memory import MemoryLog
from penstock.proof.findings import Verdict, ViolationKind
from penstock.tables.export.compact import compact
from penstock.tables.export.ledger.chain import SNAPSHOT_EVERY
from penstock.tables.export.ledger.state import LedgerState
from penstock.tables.export.proof.facts import LedgerFacts, encode_proved, read_ledger, read_proved
from penstock.tables.export.proof.verification import keep_for_next
from penstock.tables.export.rebuild.rebuild import rebuild
from penstock.tables.export.spec import ExportSpec
from penstock.verify import VerifyReport, verify
from tests.export_root import MONDAY, ONE, WEDNESDAY, ZERO, ExportRoot
from tests.unit.tables.export.proof.damaged import (
    append_bad,
    at,
    bad_root,
    checked,
    entry_path,
    facts_of,
    failed,
    first_violation,
)
from tests.watched_storage import WatchedStorage


def verified(root: ExportRoot) -> LedgerFacts:
    """A verification that proves everything and keeps that."""
    facts = facts_of(root.job)
    checks = checked(root.job, facts)
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
    whole = read_ledger(job_of(root.job, ExportSpec), from_first=True)
    assert isinstance(whole, LedgerFacts)
    assert newer.chain == whole.chain
    seen, again = checked(root.job, newer), checked(root.job, whole)
    slices = seen.pop("slices")
    assert (slices.verdict, slices.partitions) == (again["slices"].verdict, again.pop("slices").partitions)
    assert f"entries up to {kept.number} were proved on {kept.until} and not read again" in slices.detail
    assert (slices.facts["entries_read"], whole.slices.facts["entries_read"]) == (1, root.state.number)
    assert seen == again


def test_proved_entries_are_not_read_again(root: ExportRoot) -> None:
    verified(root)
    known = proved_number(root)
    root.table.ledger.keep_snapshot(root.state)
    go_on(root)
    for entry in (root.lake / "_penstock/shop/ledger").glob("*.json"):
        if int(entry.stem) < known:
            entry.write_bytes(b"gone")
    assert failed(checked(root.job)) == []
    whole = read_ledger(job_of(root.job, ExportSpec), from_first=True)
    assert isinstance(whole, LedgerFacts)
    assert not whole.slices.ok, "with --all they are"


def test_damage_to_files_that_were_proved_is_still_found(root: ExportRoot) -> None:
    verified(root)
    (root.lake / "click" / f"day={MONDAY}" / "shop.0.19.parquet").unlink()
    checks = checked(root.job)
    assert failed(checks) == ["rows", "offsets"]
    assert first_violation(checks) == at(0, 16, ViolationKind.MISSING)
    keep_for_next(facts_of(root.job), checks.values())
    assert failed(checked(root.job)) == ["rows", "offsets"]


def test_what_could_not_be_checked_says_nothing_against_the_entries(root: ExportRoot) -> None:
    facts = facts_of(root.job)
    checks = checked(root.job, facts)
    keep_for_next(facts, [*checks.values(), replace(checks["rows"], verdict=Verdict.VIOLATED)])
    assert not (root.lake / "_penstock/shop/proved.json").exists()
    keep_for_next(facts, [*checks.values(), replace(checks["rows"], verdict=Verdict.NOT_PROVEN)])
    assert proved_number(root) == root.state.number


def test_bad_records_that_wait_to_be_appended_are_not_passed_over(tmp_path: Path) -> None:
    root = bad_root(tmp_path)
    facts = facts_of(root.job)
    keep_for_next(facts, checked(root.job, facts).values())
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
    assert failed(checked(root.job)) == []


def test_what_was_proved_of_another_chain_or_is_damaged_is_passed_over(root: ExportRoot) -> None:
    verified(root)
    path = root.lake / "_penstock/shop/proved.json"
    storage = open_storage(str(root.lake), {})
    kept, body = read_proved(storage, root.table.places.proved), json.loads(path.read_bytes())
    assert kept is not None
    changes: list[dict[str, Any]] = [{"batch_id": "another"}, {"number": 999}]
    others = [encode_proved(replace(kept, **change)) for change in changes]
    changed: list[dict[str, Any]] = [{"v": 1}, {"tracks": None}, {"slices": body["slices"] + 1}]
    for data in (*others, *(json.dumps({**body, **each}).encode() for each in changed), b"torn", b"[2]"):
        path.write_bytes(data)
        facts = facts_of(root.job)
        assert facts.proved.number == 0 and facts.slices.facts["entries_read"] == root.state.number
        assert failed(checked(root.job, facts)) == []


def test_a_ledger_that_was_put_back_or_made_again_is_read_from_its_first_entry(
    root: ExportRoot, tmp_path: Path
) -> None:
    home, older = root.lake / "_penstock/shop", tmp_path / "older"
    shutil.copytree(home, older)
    root.write(ZERO, 34, 50, {("order", WEDNESDAY): range(34, 50)})
    verified(root)
    kept = (home / "proved.json").read_bytes()
    shutil.rmtree(home)
    shutil.copytree(older, home)
    (home / "proved.json").write_bytes(kept)
    assert facts_of(root.job).proved.number == 0
    assert failed(checked(root.job)) == ["rows", "offsets"], "the copy lacks an entry whose file is there"

    # It went on in its own way, past the number that was proved.
    (root.lake / "order" / f"day={WEDNESDAY}" / "shop.0.49.parquet").unlink()
    root = ExportRoot(root.job_path)
    root.write(ZERO, 34, 40, {("order", WEDNESDAY): range(34, 40)})
    assert facts_of(root.job).proved.number == 0
    verified(root)

    shutil.rmtree(home / "ledger")
    rebuild(root.open(), {ZERO: Bounds(0, 40), ONE: Bounds(0, 34)})
    assert facts_of(root.job).proved.number == 0
    assert failed(checked(root.job)) == []


def test_what_a_verification_reads_of_the_ledger_does_not_grow_with_its_age(
    root: ExportRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole of `verify`, as it is without options: each time after as many batches."""
    log: dict[int, bytes | None] = dict.fromkeys(range(34), b"{}")

    def reads(**options: Any) -> tuple[list[str], VerifyReport]:
        watched = WatchedStorage(open_storage(str(root.lake), {}))
        monkeypatch.setattr("penstock.tables.export.table.open_storage", lambda *_: watched)
        records = MemoryLog({ZERO: dict(log), ONE: dict.fromkeys(range(34), b"{}")})
        report = verify(root.job, open_log=lambda _: records, **options)
        monkeypatch.undo()
        return [path for path in watched.acts("read") if "/ledger/" in path], report

    counts = []
    for _ in range(3):
        for _ in range(SNAPSHOT_EVERY):
            start = len(log)
            root.write(ZERO, start, start + 1, {("order", WEDNESDAY): [start]})
            log[start] = b"{}"
        found, report = reads()
        assert report.verdict is Verdict.PROVEN
        counts.append(len(found))
    assert counts[1] == counts[2] < root.state.number
    again, report = reads(every_entry=True)
    assert report.verdict is Verdict.PROVEN
    assert len(set(again)) >= root.state.number

    entry_path(root, 5).write_bytes(b"torn")
    _, unseen = reads()
    assert unseen.verdict is Verdict.PROVEN
    assert "--all reads them" in next(each.detail for each in unseen.checks if each.name == "slices")
    _, found_out = reads(every_entry=True)
    assert found_out.verdict is Verdict.VIOLATED
    assert proved_number(root) == root.state.number
