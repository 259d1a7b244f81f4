"""The table of closed windows: opened or created, and the commit of a portion of a close (RULES W2, W3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.environment import Environment
from penstock.errors import TransientError
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import ClosedName, owner_tag
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.delta.active_files import ActiveFile, refuse_deletion_vectors
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table, open_or_create
from penstock.lake.delta.vacuum import Dead, Kept, by_version
from penstock.lake.maintenance.leftovers import NameRules, Verdict
from penstock.lake.staged import check_staged
from penstock.tables.rollup.closing.decide import ClosePortion
from penstock.tables.rollup.closing.portion.closed_rows import windows_schema
from penstock.tables.rollup.closing.standing import (
    closed_key,
    closed_portions_key,
    closed_until_key,
    joined_key,
    late_key,
    since_key,
    updated_key,
)
from penstock.tables.rollup.spec import RollupSpec


class WindowsRewrittenError(TransientError):
    """Somebody else replaced files of closed windows that a portion wanted to replace: it has to be done again."""


@dataclass(frozen=True, slots=True)
class StagedPortion:
    """What the Spark job of a portion leaves for its commit."""

    schema: pa.Schema
    files: tuple[StagedFile, ...] = ()
    replaced: tuple[ActiveFile, ...] = ()
    """Files whose rows are in `files`, as far as they were not updated."""
    rows: int = 0
    """Of windows that were closed."""
    updated: int = 0
    """Rows of windows that were closed before."""
    late: Mapping[str, int] = field(default_factory=dict)
    """Points by interval."""


def open_windows_table(job: JobSpec[RollupSpec], environment: Environment) -> Table:
    """The table, created if it is missing, with a column for everything that the job asks for."""
    schema = windows_schema(job.table.aggregates)
    return open_or_create(job.table.windows_place, job.name, schema, NewColumnPolicy.ADD, environment)


def land_portion(windows: Table, portion: ClosePortion, staged: StagedPortion) -> bool:
    """Commit the rows of a portion; False if it is there already, whoever brought it."""

    def decide() -> Change | None:
        numbers = windows.transactions()
        done = numbers.get(closed_key(windows.job), 0), numbers.get(closed_portions_key(windows.job), 0)
        if done != (portion.close - 1, portion.portion):
            return None
        windows.check_schema(staged.schema)
        _check_active(windows, staged)
        check_staged(windows.storage(), staged.files)
        return _change(windows, portion, staged)

    return windows.swap(decide)


def _check_active(windows: Table, staged: StagedPortion) -> None:
    if not staged.replaced:
        return
    refuse_deletion_vectors(windows.handle, windows.spec.path)
    active = {each.path: each for each in windows.active_files()}
    gone = [each.path for each in staged.replaced if active.get(each.path) != each]
    if gone:
        raise WindowsRewrittenError(
            f"{len(gone)} files of {windows.spec.path} were replaced while late points were added to their windows",
            hint="another writer or a compaction; it will be tried again",
        )


def _change(windows: Table, portion: ClosePortion, staged: StagedPortion) -> Change:
    removes = [windows.remove_action(each) for each in staged.replaced]
    return Change(
        actions=[*removes, *map(windows.add_action, staged.files)],
        transactions={**_progress(windows.job, portion), **_since(windows, portion), **_sums(windows, staged)},
        metadata=Provenance(
            kind="close",
            job=windows.job,
            batch=f"{portion.close}.{portion.portion}",
            rows=staged.rows + staged.updated,
            size_bytes=sum(each.size_bytes for each in staged.files),
            files_removed=len(removes),
            files_added=len(staged.files),
        ).metadata,
    )


def _progress(job: str, portion: ClosePortion) -> dict[str, int]:
    done = portion.portion + 1
    if done < portion.portions:
        return {closed_portions_key(job): done}
    return {
        closed_key(job): portion.close,
        closed_until_key(job): portion.until_ms,
        closed_portions_key(job): 0,
    }


def _since(windows: Table, portion: ClosePortion) -> dict[str, int]:
    """Which intervals take part, and where one begins that the job did not have in the close before."""
    numbers: dict[str, int] = {}
    for name in (each.window.name for each in portion.spans):
        since, joined = since_key(windows.job, name), joined_key(windows.job, name)
        if windows.transaction(since) is None or (windows.transaction(joined) or 0) < portion.close - 1:
            numbers[since] = portion.close
        numbers[joined] = portion.close
    return numbers


def _sums(windows: Table, staged: StagedPortion) -> dict[str, int]:
    added = {late_key(windows.job, interval): points for interval, points in staged.late.items()}
    added[updated_key(windows.job)] = staged.updated
    return {key: (windows.transaction(key) or 0) + number for key, number in added.items() if number}


def windows_rules(windows: Table) -> NameRules:
    """Which files that no version names can go (RULES C7): a close commits nothing after it is complete."""
    owner, closed = owner_tag(windows.job), windows.transaction(closed_key(windows.job)) or 0

    def of_close(name: ClosedName) -> Verdict:
        if name.owner != owner:
            return Kept.OTHERS
        return Dead.CLOSED if name.close <= closed else Kept.COMMITTABLE

    return NameRules(lambda _: Kept.UNKNOWN, by_version(windows), lambda _: Kept.UNKNOWN, of_close)
