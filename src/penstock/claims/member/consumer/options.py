"""The options of a member: its topics, and how records are delivered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from penstock.errors import UserError
from penstock.job.spec import KafkaLogSpec, StartAt

IN_FLIGHT_MAX = 1000

Delivery = Literal["at_least_once", "at_most_once"]
Start = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """How records reach the application; `in_flight_max` limits those of one partition after its position.

    `start` is where a group begins. UserError for an invalid word or number.
    """

    delivery: Delivery = "at_least_once"
    in_flight_max: int = IN_FLIGHT_MAX
    start: StartAt | Mapping[str, Mapping[int, int]] = StartAt.EARLIEST

    def __post_init__(self) -> None:
        _one_of("delivery", self.delivery, get_args(Delivery))
        if self.in_flight_max < 1:
            raise UserError(f"in_flight_max is {self.in_flight_max}, must be at least 1")

    @property
    def at_most_once(self) -> bool:
        return self.delivery == "at_most_once"

    @property
    def start_moves(self) -> bool:
        """Whether `start` means another offset at another time: it is recorded before the first record is read."""
        return self.start is not StartAt.EARLIEST


def log_spec(where: str | KafkaLogSpec, topics: Sequence[str], start: Start | None) -> KafkaLogSpec:
    """The log of a member: by its brokers alone, or by a full description with security and client settings."""
    if isinstance(topics, str):
        raise UserError(f"topics is the text {topics!r}, must be a list of names", hint=f"topics=[{topics!r}]")
    spec = KafkaLogSpec(bootstrap=where) if isinstance(where, str) else where
    if topics:
        spec = replace(spec, topics=tuple(topics), topic_pattern=None)
    if not spec.topics and spec.topic_pattern is None:
        raise UserError("a member needs at least one topic", hint="topics=['orders']")
    if start is not None:
        _one_of("start", start, get_args(Start))
        spec = replace(spec, start=StartAt(start))
    return spec


def _one_of(name: str, found: str, allowed: Sequence[str]) -> None:
    if found not in allowed:
        raise UserError(f"{name} is {found!r}, must be one of {', '.join(allowed)}")
