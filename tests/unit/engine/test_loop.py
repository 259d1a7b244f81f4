"""The loop retries transient errors up to a bound, stops on request, and ends a bounded run."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from penstock.engine.loop import Loop, Retries
from penstock.engine.round import ChoreDone, RoundResult, Waiting
from penstock.errors import PenstockError, TransientError, UnreachableError, UserError
from penstock.events import NullListener
from penstock.logs.log import Partition

AWAY = TransientError("Kafka does not answer")
CAUGHT_UP = Waiting(None, done=True)
BATCH = ChoreDone("columns")


class Patient(threading.Event):
    """Takes pauses without sleeping; a test may stop the loop in one."""

    def __init__(self, stop_after: int = 100) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._stop_after = stop_after

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        if len(self.pauses) >= self._stop_after:
            self.set()
        return self.is_set()


class Script:
    """Rounds that end as written."""

    def __init__(self, *rounds: RoundResult | PenstockError) -> None:
        self._remaining = list(rounds)
        self.bounds: list[dict[Partition, int] | None] = []
        self.closed = False

    def round(self, flush_now: bool = False, ends: dict[Partition, int] | None = None) -> RoundResult:
        self.bounds.append(ends)
        result = self._remaining.pop(0)
        if isinstance(result, PenstockError):
            raise result
        return result

    def present_ends(self) -> dict[Partition, int]:
        return {Partition("web", "id", 0): 7 + len(self.bounds)}

    def close(self) -> None:
        self.closed = True


def loop_of(script: Callable[[], Script], stop: threading.Event, once: bool = True, retries: int = 3) -> Loop:
    return Loop(script, once, stop, Retries(retries, random.Random(7)), NullListener())


def test_transient_errors_are_retried_up_to_the_bound_and_then_raised() -> None:
    stop = Patient()
    with pytest.raises(TransientError) as raised:
        loop_of(lambda: Script(*[AWAY] * 9), stop).run()
    assert raised.value is AWAY
    assert len(stop.pauses) == 3
    assert all(0.5 <= pause <= 30 for pause in stop.pauses)


def test_a_server_that_does_not_answer_ends_a_run_only_before_its_first_success() -> None:
    unreachable, stop = UnreachableError("Kafka does not answer"), Patient()
    with pytest.raises(UnreachableError):
        loop_of(lambda: Script(unreachable), stop).run()
    assert stop.pauses == []
    loop_of(lambda: Script(BATCH, unreachable, CAUGHT_UP), stop).run()
    assert len(stop.pauses) == 1


def test_rounds_are_closed_after_any_end_of_the_loop() -> None:
    good, bad = Script(CAUGHT_UP), Script(*[AWAY] * 9)
    loop_of(lambda: good, Patient()).run()
    with pytest.raises(TransientError):
        loop_of(lambda: bad, Patient()).run()
    assert good.closed and bad.closed


def test_a_pipeline_that_cannot_be_opened_yet_is_opened_again() -> None:
    script, failures = Script(BATCH, CAUGHT_UP), [AWAY, AWAY]

    def open_rounds() -> Script:
        if failures:
            raise failures.pop()
        return script

    stop = Patient()
    loop_of(open_rounds, stop).run()
    assert len(stop.pauses) == 2
    assert len(script.bounds) == 2


def test_a_success_resets_the_count_of_failures() -> None:
    rounds: list[RoundResult | PenstockError] = [AWAY, AWAY, BATCH] * 4
    script = Script(*rounds, CAUGHT_UP)
    loop_of(lambda: script, Patient(), retries=2).run()
    assert len(script.bounds) == len(rounds) + 1


def test_an_error_of_the_user_is_raised_at_once() -> None:
    stop = Patient()
    with pytest.raises(UserError):
        loop_of(lambda: Script(UserError("no such topic")), stop).run()
    assert stop.pauses == []


def test_a_bounded_run_keeps_the_ends_that_it_saw_first() -> None:
    script = Script(BATCH, AWAY, BATCH, CAUGHT_UP)
    loop_of(lambda: script, Patient()).run()
    assert script.bounds == [{Partition("web", "id", 0): 7}] * 4


def test_a_run_without_end_goes_on_after_it_has_caught_up_until_it_is_stopped() -> None:
    script = Script(BATCH, CAUGHT_UP, CAUGHT_UP, CAUGHT_UP)
    loop_of(lambda: script, Patient(stop_after=2), once=False).run()
    assert script.bounds == [None] * 3


def test_every_turn_counts_as_progress_even_a_failed_one() -> None:
    signs: list[None] = []
    script = Script(BATCH, AWAY, AWAY, CAUGHT_UP)
    retries = Retries(3, random.Random(7))
    Loop(lambda: script, True, Patient(), retries, NullListener(), lambda: signs.append(None)).run()
    assert len(signs) == 4
