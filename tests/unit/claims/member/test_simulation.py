"""Claims under hostile schedules: skewed clocks, sleeping processes, late and lost words, crashes, double client ids.

A failure names its seed; `tests.unit.claims.member.simulation.simulate(seed)` replays it.
"""

from __future__ import annotations

import pytest

from tests.unit.claims.member.model_table import ViolationError
from tests.unit.claims.member.simulation import Outcome, simulate

SEEDS = 1_000
CHUNK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK), ids=lambda first: f"seeds {first} to {first + CHUNK - 1}")
def test_every_record_is_written_once_whatever_happens_to_the_group(first: int) -> None:
    outcomes = [simulate(seed) for seed in range(first, first + CHUNK)]
    check_hostile(outcomes)


def check_hostile(outcomes: list[Outcome]) -> None:
    """The promises are worth something only if the schedules tried to break them."""
    assert sum(each.takeovers for each in outcomes) > CHUNK
    assert sum(each.crashes for each in outcomes) > CHUNK / 2
    assert sum(each.naps for each in outcomes) > CHUNK
    assert sum(each.late + each.lost for each in outcomes) > 5 * CHUNK
    assert sum(each.refused for each in outcomes) > CHUNK
    assert sum(each.duplicates_refused for each in outcomes) > CHUNK / 4
    assert sum(each.replaced for each in outcomes) > 0
    assert sum(each.table.refused for each in outcomes) > CHUNK / 4
    assert sum(each.table.accepted for each in outcomes) > 50 * CHUNK


def test_a_seed_replays_word_for_word() -> None:
    assert simulate(7) == simulate(7)


# the checks can fail


def violations(count: int, *, table_checks: bool = True, deaf: bool = False) -> list[str]:
    found = []
    for seed in range(count):
        try:
            simulate(seed, table_checks=table_checks, deaf=deaf)
        except ViolationError as violation:
            found.append(str(violation))
    return found


def test_without_the_tables_check_rows_of_old_owners_are_seen_to_pass() -> None:
    found = violations(40, table_checks=False)
    assert len(found) >= 10
    assert any("after a newer fence" in each for each in found)
    assert all(each.startswith("seed ") for each in found)


def test_a_reader_that_misses_records_is_seen_to_disagree() -> None:
    found = violations(5, deaf=True)
    assert len(found) == 5
    assert all("disagrees" in each for each in found)
