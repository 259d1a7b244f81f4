"""Fair shares: equal up to one, within bounds, and nothing moves without need."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.claims.member.fair_shares import Seat, favourite, needy, targets

SEATS = st.lists(st.tuples(st.integers(0, 10), st.none() | st.integers(0, 6)), min_size=1, max_size=8).map(
    lambda rows: [Seat(f"m{number}", held, bound) for number, (held, bound) in enumerate(rows)]
)


def shares(units: int, *held: int, bounds: tuple[int | None, ...] = ()) -> list[int]:
    """The shares of members m0, m1, ... that hold so many units now."""
    limits = bounds or (None,) * len(held)
    seats = [Seat(f"m{number}", count, limits[number]) for number, count in enumerate(held)]
    found = targets(seats, units)
    return [found[seat.client_id] for seat in seats]


@pytest.mark.parametrize(
    ("units", "held", "expected"),
    [
        (12, (0,), [12]),
        (12, (12, 0), [6, 6]),
        (12, (6, 6, 0), [4, 4, 4]),
        (12, (4, 4, 4, 0, 0), [3, 3, 2, 2, 2]),
        (12, (0,) * 12, [1] * 12),
        (3, (0, 0, 0, 0, 0), [1, 1, 1, 0, 0]),
        (0, (0, 0), [0, 0]),
        (7, (1, 4, 2), [2, 3, 2]),
        (7, (2, 2, 3), [2, 2, 3]),
    ],
)
def test_members_get_equal_shares_up_to_one(units: int, held: tuple[int, ...], expected: list[int]) -> None:
    assert shares(units, *held) == expected


def test_the_odd_ones_stay_where_most_is_held() -> None:
    assert shares(5, 2, 3) == [2, 3]
    assert shares(5, 3, 2) == [3, 2]
    assert shares(2, 0, 1, 1) == [0, 1, 1]


def test_what_one_member_may_not_take_goes_to_the_others() -> None:
    assert shares(12, 0, 0, 0, bounds=(2, None, None)) == [2, 5, 5]
    assert shares(12, 0, 0, 0, bounds=(2, 3, None)) == [2, 3, 7]
    assert shares(12, 0, 0, bounds=(0, None)) == [0, 12]


def test_what_nobody_may_take_is_left() -> None:
    assert shares(12, 0, 0, bounds=(2, 3)) == [2, 3]
    assert shares(12, 0, bounds=(0,)) == [0]


@given(SEATS, st.integers(0, 60))
def test_everything_is_given_out_unless_all_are_full(seats: list[Seat], units: int) -> None:
    found = targets(seats, units)
    room = sum(units if seat.units_max is None else seat.units_max for seat in seats)
    assert sum(found.values()) == min(units, room)
    assert all(seat.units_max is None or found[seat.client_id] <= seat.units_max for seat in seats)


@given(SEATS, st.integers(0, 60))
def test_nobody_has_two_more_than_somebody_with_room(seats: list[Seat], units: int) -> None:
    found = targets(seats, units)
    most = max(found.values())
    for seat in seats:
        share = found[seat.client_id]
        assert share >= most - 1 or share == seat.units_max


@given(SEATS)
def test_nothing_moves_where_all_is_given_out_fairly(seats: list[Seat]) -> None:
    """Hold exactly the shares: computed again, they are the same."""
    found = targets(seats, 20)
    settled = [Seat(seat.client_id, found[seat.client_id], seat.units_max) for seat in seats]
    assert targets(settled, 20) == found


@given(SEATS, st.integers(0, 60), st.randoms())
def test_every_process_computes_the_same(seats: list[Seat], units: int, rng: random.Random) -> None:
    mixed = list(seats)
    rng.shuffle(mixed)
    assert targets(mixed, units) == targets(seats, units)


def test_needy_is_who_holds_less_than_its_share() -> None:
    seats = [Seat("c", 0), Seat("a", 1), Seat("b", 4)]
    assert needy(seats, {"a": 2, "b": 2, "c": 1}) == ("a", "c")
    assert needy(seats, {"a": 1, "b": 4, "c": 0}) == ()


def test_a_free_unit_has_one_favourite_whoever_asks() -> None:
    members = ("anna", "bert", "cleo")
    for unit in ("web/0", "web/1", ""):
        assert favourite(unit, members) == favourite(unit, tuple(reversed(members)))
    assert favourite("web/0", ()) is None


def test_favourites_spread_over_the_members() -> None:
    members = tuple(f"m{number}" for number in range(4))
    found = [favourite(f"web/{number}", members) for number in range(400)]
    assert all(60 <= found.count(member) <= 140 for member in members)


@given(st.lists(st.text(max_size=5), min_size=2, max_size=6, unique=True), st.text(max_size=5))
def test_a_favourite_stays_one_when_others_go(members: list[str], unit: str) -> None:
    chosen = favourite(unit, members)
    rest = [each for each in members if each == chosen or each > members[0]]
    assert favourite(unit, rest) == chosen
