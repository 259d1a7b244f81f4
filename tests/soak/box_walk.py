"""The random walk of the black-box test: a list of actions, drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from tests.soak.box_events import TYPES

DAYS = 6
EXPORTERS = 2
BROKEN_MAX = 2
ADD_TYPE_DAY = 2
SECOND_TOPIC_DAY = 3
LOSS_DAY = 4

EXPORTER_STEPS = (
    *("planned", "writing", "staged", "checked", "entry_written", "renaming", "renaming", "renaming", "renamed"),
    *("snapshot_written", "committed", "quarantined", "marked", "mirrored", "fenced"),
)
COMPACT_STEPS = (
    *("compact_staged", "compact_checked", "entry_written", "removing", "removed", "renaming", "renamed"),
    "compact_committed",
)
VACUUM_STEPS = ("vacuum_listed", "vacuum_deleting")
REPLAY_STEPS = ("replay_staged", "entry_written", "renaming", "renamed", "replay_committed", "replay_removed")


@dataclass(frozen=True, slots=True)
class Send:
    """Send records to the topics, most of one day, some of days before it."""

    day: int
    rows: int
    seed: int


@dataclass(frozen=True, slots=True)
class Kill:
    """`kill -9` of a working exporter; its successor starts with an armed failpoint or without one."""

    exporter: int
    failpoint: str


@dataclass(frozen=True, slots=True)
class Maintain:
    """`penstock compact` or `vacuum` while exporters run, killed at a step or not."""

    command: tuple[str, ...]
    failpoint: str


@dataclass(frozen=True, slots=True)
class Break:
    """Put a file where the folder of a type is."""

    type: str


@dataclass(frozen=True, slots=True)
class Heal:
    """Put the folder of a type back."""

    type: str


@dataclass(frozen=True, slots=True)
class AddType:
    """Name a type that was unknown, and replay its records while exporters run: killed at a step, then to the end."""

    failpoint: str


@dataclass(frozen=True, slots=True)
class AddTopic:
    """Name a second topic in the job files and start the exporters again."""


@dataclass(frozen=True, slots=True)
class LoseLogs:
    """Stop the exporters while the broken types lag, heal these, delete the logs, rebuild them and go on.

    The logs of types may still be there.
    """

    broken: tuple[str, ...]
    types_stay: bool


@dataclass(frozen=True, slots=True)
class WaitAndCompare:
    """Wait until all types that can be written are, and compare them with what was sent."""


Action = Send | Kill | Maintain | Break | Heal | AddType | AddTopic | LoseLogs | WaitAndCompare


def walk(seed: int, length: int, rows: int) -> tuple[Action, ...]:
    """`length` disturbances over the days, with rows after each; everything is healed at the end."""
    return tuple(_actions(Random(seed), length, rows // (length + DAYS)))


def _actions(rng: Random, length: int, rows: int) -> Iterator[Action]:
    broken: list[str] = []
    for day in range(DAYS):
        if day == SECOND_TOPIC_DAY:
            yield AddTopic()
        if day == ADD_TYPE_DAY:
            yield AddType(_failpoint(rng, REPLAY_STEPS, visits=1))
        yield _send(rng, day, rows)
        if day == 0:
            yield WaitAndCompare()
        for _ in range((length * (day + 1)) // DAYS - (length * day) // DAYS):
            yield _disturbance(rng, broken)
            yield _send(rng, day, rows)
        if day == LOSS_DAY:
            yield from _loss(rng, broken, _send(rng, day, rows))
        yield WaitAndCompare()
    yield from map(Heal, broken)
    yield _send(rng, DAYS - 1, rows)
    yield WaitAndCompare()


def _send(rng: Random, day: int, rows: int) -> Send:
    return Send(day, rows, rng.randrange(2**32))


def _loss(rng: Random, broken: list[str], send: Send) -> Iterator[Action]:
    if not broken and rng.random() < 0.5:
        broken.append(rng.choice(TYPES))
        yield Break(broken[-1])
        yield send
    yield LoseLogs(tuple(broken), types_stay=rng.random() < 0.5)
    broken.clear()


def _disturbance(rng: Random, broken: list[str]) -> Action:
    drawn = rng.random()
    if drawn < 0.4:
        armed = _failpoint(rng, EXPORTER_STEPS, visits=6) if rng.random() < 0.6 else ""
        return Kill(rng.randrange(EXPORTERS), armed)
    if drawn < 0.7:
        command = ("compact", "--all-days") if rng.random() < 0.6 else ("compact",)
        return Maintain(command, _failpoint(rng, COMPACT_STEPS, visits=4) if rng.random() < 0.6 else "")
    if drawn < 0.8:
        return Maintain(("vacuum",), _failpoint(rng, VACUUM_STEPS, visits=3) if rng.random() < 0.5 else "")
    if broken and (len(broken) == BROKEN_MAX or rng.random() < 0.5):
        return Heal(broken.pop(rng.randrange(len(broken))))
    broken.append(rng.choice([item for item in TYPES if item not in broken]))
    return Break(broken[-1])


def _failpoint(rng: Random, steps: Sequence[str], visits: int) -> str:
    return f"{rng.choice(steps)}:kill:{rng.randint(1, visits)}"
