"""The table of a type takes the files of a replay run that the ledger orders it to take, once (RULES Q2, L8).

The number of the run goes into the same commit: a table that knows it has the files, whoever brought them and whatever
compaction made of them since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.flow.write.manifest import StagedFile
from penstock.lake.delta.keys import field_key, replay_key
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.lake.staged import check_staged
from penstock.logs.log import Partition
from penstock.tables.export.ledger.names import type_and_day
from penstock.tables.export.ledger.state import Rename
from penstock.tables.quarantine.replayed import run_number


def take_run(table: Table, run: int, renames: Sequence[Rename]) -> None:
    """Commit the files of a run to the table of their type; nothing, if somebody has done it.

    Raises `StagedFileGoneError` if a file is not there, and whatever a commit raises.
    """
    files = [_staged(each) for each in renames]

    def decide() -> Change | None:
        if run_number(table) >= run:
            return None
        check_staged(table.storage(), files)
        return Change(
            actions=[table.add_action(each) for each in files],
            transactions={replay_key(table.job): run, **_totals(table, renames)},
            metadata=Provenance(
                kind="replay",
                job=table.job,
                run=run,
                rows=sum(each.rows for each in renames),
                size_bytes=sum(each.size_bytes for each in renames),
            ).metadata,
        )

    table.swap(decide)


def _totals(table: Table, renames: Sequence[Rename]) -> dict[str, int]:
    rows: Counter[str] = Counter()
    for each in renames:
        # The keys of app transactions hold the topic id and no topic.
        rows[field_key(table.job, Partition("", each.topic_id, each.partition), "replayed")] += each.rows
    return {key: (table.transaction(key) or 0) + count for key, count in rows.items()}


def _staged(rename: Rename) -> StagedFile:
    """The file as the type's own table sees it."""
    place = type_and_day(rename.target)
    assert place is not None
    path = rename.target.removeprefix(f"{rename.type}/")
    return StagedFile("", rename.partition, path, rename.rows, rename.size_bytes, {"day": place[1]}, rename.stats)
