"""What the engine may expect of claims: a single process that holds everything, and a group over a real broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.claims import Claims, StaticClaims
from penstock.claims.group import open_group
from penstock.job.spec import ClaimsSpec, KafkaLogSpec
from penstock.logs.log import Partition

ZERO, ONE = Partition("events", "id-1", 0), Partition("events", "id-1", 1)
SECONDS_MAX = 60.0

Open = Callable[[], Iterator[Claims]]


@contextmanager
def opened(kind: str, request: pytest.FixtureRequest) -> Iterator[Claims]:
    if kind == "static":
        yield StaticClaims()
        return
    name = f"group-{uuid.uuid4().hex[:8]}"
    spec = KafkaLogSpec(request.getfixturevalue("bootstrap"), topics=("events",), group=name)
    options = ClaimsSpec(heartbeat_seconds=0.5, topic=f"__{name}", partitions=1)
    claims = open_group(spec, options, lambda event: None)
    try:
        yield claims
    finally:
        claims.close()


@pytest.fixture(params=["static", "group"])
def claims(request: pytest.FixtureRequest) -> Iterator[Claims]:
    with opened(request.param, request) as claims:
        yield claims


def held(claims: Claims, floor: int = 0) -> dict[Partition, int]:
    """Both partitions, once they are claimed."""
    deadline = time.monotonic() + SECONDS_MAX
    while len(result := claims.held([ZERO, ONE], {ZERO: floor, ONE: floor})) < 2:
        assert time.monotonic() < deadline, "partitions that no other process requests were not claimed"
        time.sleep(0.05)
    return result


def test_the_only_process_holds_everything_under_a_token(claims: Claims) -> None:
    tokens = held(claims)
    assert all(token >= 1 for token in tokens.values())
    assert all(claims.keeps(partition, token) for partition, token in tokens.items())
    assert held(claims) == tokens


def test_a_token_is_never_below_the_tables(claims: Claims) -> None:
    assert all(token >= 7 for token in held(claims, floor=7).values())


def test_a_claim_whose_token_the_table_refuses_is_claimed_again(claims: Claims) -> None:
    held(claims)
    claims.renounce(ZERO)
    assert set(held(claims)) == {ZERO, ONE}
