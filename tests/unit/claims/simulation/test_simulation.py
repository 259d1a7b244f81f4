"""Claims under hostile schedules: clocks that are wrong or set, sleeping and hanging processes, late and lost records,
crashes, double client ids, seeks, pauses, other lists and intervals, and logs that are cut or gone.

A failure names its seed; `tests.unit.claims.simulation.simulation.simulate(seed)` replays it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from tests.unit.claims.simulation.executions import ConsumerTrade
from tests.unit.claims.simulation.model_table import ViolationError
from tests.unit.claims.simulation.simulation import simulate
from tests.unit.claims.simulation.trades import OnceTrade
from tests.unit.claims.simulation.world import Outcome

SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "20"))
"""`make simulate` tries 2,000."""
MANY = 100
CHUNK = min(MANY, SEEDS)
SELDOM = ("outage", "other_list", "grow", "other_heartbeat", "lost log", "too large", "resume", "double", "leave")
DRILLS = ("kill", "mute", "hang", "leave", "pause", "clock", "terms", "want")


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK), ids=lambda first: f"seeds {first} to {first + CHUNK - 1}")
def test_the_promises_hold_under_random_group_events(first: int) -> None:
    outcomes = [simulate(seed) for seed in range(first, first + CHUNK)]
    check_hostile(outcomes)
    if CHUNK >= MANY:
        check_thorough(outcomes)


def check_hostile(outcomes: list[Outcome]) -> None:
    """The promises are worth something only if the schedules tried to break them."""
    befell, ended = total(outcomes)
    assert befell["takeover"] > CHUNK / 2
    assert befell["crash"] > CHUNK / 4
    assert befell["nap"] > CHUNK / 2
    assert sum(outcome.late + outcome.lost for outcome in outcomes) > 5 * CHUNK
    assert sum(item.refused for item in outcomes) > CHUNK
    assert ended["DuplicateClientError"] > CHUNK / 8
    for often in ("interrupt", "hang", "mute", "election", "clock", "pause", "seek", "free", "retention"):
        assert befell[often] > 0, often


def total(outcomes: list[Outcome]) -> tuple[Counter[str], Counter[str]]:
    befell, ended = Counter[str](), Counter[str]()
    for outcome in outcomes:
        befell.update(outcome.befell)
        ended.update(outcome.ended)
    return befell, ended


def check_thorough(outcomes: list[Outcome]) -> None:
    """So many schedules reach every trade, every misfortune and every drill."""
    befell, ended = total(outcomes)
    assert max(outcome.lists for outcome in outcomes) > 1
    for item in (*SELDOM, *(f"drill {drill}" for drill in DRILLS)):
        assert befell[item] > 0, item
    for error in ("ReplacedError", "DifferentHeartbeatError", "LostHistoryError"):
        assert ended[error] > 0, error
    assert sum(outcome.trade.seeks for outcome in outcomes if isinstance(outcome.trade, OnceTrade)) > 0
    consumers = [outcome.trade for outcome in outcomes if isinstance(outcome.trade, ConsumerTrade)]
    assert sum(consumer.seeks for consumer in consumers) > 0
    assert sum(consumer.again for consumer in consumers) > 0, "at least once is more than once after a crash"


@pytest.mark.parametrize("trade", ["table", "latest"])
def test_a_seed_replays_record_for_record(trade: str) -> None:
    first, second = (replace(simulate(7, trade=trade), trade=None) for _ in range(2))  # type: ignore[arg-type]
    assert first == second


# the checks can fail


def violations(
    count: int, trade: str | None = None, *, careless: bool = False, disconnected: bool = False
) -> Iterator[str]:
    for seed in range(count):
        try:
            simulate(seed, trade=trade, careless=careless, disconnected=disconnected)
        except ViolationError as violation:
            yield str(violation)


def test_without_the_token_check_rows_of_old_owners_are_shown_to_pass() -> None:
    result = list(islice(violations(30, "table", careless=True), 5))
    assert len(result) == 5
    assert any("after a newer fence" in item for item in result)
    assert all(failure.startswith("seed ") for failure in result)


@pytest.mark.parametrize("trade", ["once", "most"])
def test_messages_executed_before_they_are_claimed_are_shown_to_be_executed_twice(trade: str) -> None:
    assert any("twice" in violation for violation in violations(20, trade, careless=True))


def test_records_acknowledged_before_execution_are_shown_to_be_missing() -> None:
    assert any("finished is only" in violation for violation in violations(5, "least", careless=True))


def test_a_reader_that_misses_records_is_shown_to_disagree() -> None:
    result = list(violations(5, disconnected=True))
    assert len(result) == 5
    assert all("disagrees" in item for item in result)
