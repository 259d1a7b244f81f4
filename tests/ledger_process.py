"""A small real process that exports a made-up log through the ledger, without Spark: `python -m tests.ledger_process`.

Offset n of the log is an event of type A, B or C by n % 3, of one of two days by n % 2. Arguments: root, token, end of
the log, offsets per slice. It fences, reads on from the table's position to the end, and exits with 4 if it is refused.
"""

from __future__ import annotations

import sys

from penstock.environment import Environment
from penstock.errors import FencedError
from penstock.failpoints import noop
from penstock.lake.proposal import FencePart, StartPart
from penstock.lake.storage import open_storage
from penstock.logs.log import Partition
from penstock.tables.export.table import ExportTable
from penstock.tables.registry import failpoint as armed_failpoint
from tests.routed_parts import EVENTS, Event, Reader, land, open_table, staged_in

KINDS = ("A", "B", "C")
DAYS = ("2026-03-01", "2026-03-02")


def made_up_log(end: int) -> list[Event]:
    return [Event(offset, KINDS[offset % 3], DAYS[offset % 2]) for offset in range(end)]


def own(table: ExportTable, partition: Partition, token: int) -> int:
    """Become the owner: enter the types, fence, and only then read where to go on (RULES C5)."""
    table.agree_on_types()
    begun = table.state().of(partition).position is not None
    first = FencePart(partition, token) if begun else StartPart(partition, 0, token)
    if land(table, first).refused:
        raise FencedError(f"token {token} is too old for {partition}")
    position = table.state().of(partition).position
    assert position is not None
    return position


def export(table: ExportTable, token: int, end: int, slice_offsets: int) -> None:
    reader = Reader(made_up_log(end), KINDS, EVENTS, token, staged_in(table))
    position = own(table, EVENTS, token)
    while position < end:
        stop = min(end, position + slice_offsets)
        if land(table, reader.main(position, stop)).refused:
            raise FencedError(f"{EVENTS} was taken over")
        position = stop
        print(position, flush=True)


def main(root: str, token: str, end: str, slice_offsets: str) -> int:
    failpoint = armed_failpoint()
    environment = Environment(reach=failpoint.reach if failpoint else noop)
    table = open_table(open_storage(root, {}), KINDS, environment)
    try:
        export(table, int(token), int(end), int(slice_offsets))
    except FencedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
