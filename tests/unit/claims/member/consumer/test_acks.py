"""Records may be finished in any order; the position never passes one that is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.claims.member.consumer.acks import Acks, LostClaimError, NotInFlightError
from penstock.errors import FencedError, UserError
from penstock.logs.log import Partition

WEB = Partition("web", "id-of-web", 0)
TOKEN = 7


def acks(start: int = 0, in_flight_max: int = 100) -> Acks:
    return Acks(WEB, TOKEN, start, in_flight_max)


def delivered(*offsets: int, start: int = 0, in_flight_max: int = 100) -> Acks:
    result = acks(start, in_flight_max)
    for offset in offsets:
        result.deliver(offset)
    return result


def test_upstream_17_the_position_waits_for_the_first_unfinished_record_and_then_jumps() -> None:
    six = delivered(0, 1, 2, 3, 4, 5)
    assert six.position == 0
    assert six.done(0, TOKEN)
    assert (six.position, six.tracked) == (1, 5)
    assert not six.done(2, TOKEN), "the third is done before the second"
    assert (six.position, six.tracked) == (1, 5)
    assert six.done(1, TOKEN)
    assert (six.position, six.tracked) == (3, 3)
    with pytest.raises(NotInFlightError):
        six.done(95, TOKEN)
    for offset in (5, 3, 4):
        six.done(offset, TOKEN)
    assert (six.position, six.tracked, six.undone) == (6, 0, 0)


def test_upstream_18_and_31_a_record_finished_in_the_middle_stays_tracked_until_those_before_it_are_done() -> None:
    three, two = delivered(0, 1, 2), delivered(0, 1)
    three.done(1, TOKEN)
    assert (three.position, three.tracked, three.undone) == (0, 3, 2)
    for offset in (0, 2):
        three.done(offset, TOKEN)
    for offset in (0, 1):
        two.done(offset, TOKEN)
    assert (three.position, two.position) == (3, 2)


def test_upstream_22_a_member_that_stops_leaves_the_position_at_its_first_unacknowledged_record() -> None:
    six = delivered(0, 1, 2, 3, 4, 5)
    six.done(0, TOKEN)
    assert (six.position, six.undone) == (1, 5)


def test_upstream_43_one_record_is_outstanding_until_it_is_done() -> None:
    one = delivered(0)
    assert (one.undone, one.tracked) == (1, 1)
    one.done(0, TOKEN)
    assert (one.undone, one.tracked, one.position) == (0, 0, 1)


def test_the_position_skips_offsets_that_the_log_does_not_hold() -> None:
    """Compaction and transactions leave holes."""
    holes = delivered(3, 7, 20, start=1)
    assert holes.position == 3, "nothing exists below it"
    holes.done(3, TOKEN)
    assert holes.position == 7
    holes.done(20, TOKEN)
    holes.done(7, TOKEN)
    assert holes.position == 21


def test_the_position_goes_to_the_end_of_a_log_whose_tail_holds_no_records() -> None:
    tail = delivered(4, start=4)
    tail.pass_over(6)
    assert tail.position == 4, "the record before the tail is not done"
    tail.done(4, TOKEN)
    assert tail.position == 6
    tail.pass_over(5)
    assert tail.position == 6, "it never goes back"


@pytest.mark.parametrize("start", [0, 12])
def test_nothing_handed_out_leaves_the_position_where_the_claim_began(start: int) -> None:
    """Zero is a position like any other (P13)."""
    assert acks(start).position == start


def test_p16_finishing_a_record_twice_is_refused_and_counts_nothing() -> None:
    three = delivered(0, 1, 2)
    three.done(1, TOKEN)
    with pytest.raises(NotInFlightError) as while_tracked:
        three.done(1, TOKEN)
    assert while_tracked.value.offset == 1
    three.done(0, TOKEN)
    with pytest.raises(NotInFlightError):
        three.done(0, TOKEN)
    assert (three.undone, three.tracked, three.position) == (1, 1, 2)
    assert issubclass(NotInFlightError, UserError)


def test_p16_acknowledging_an_undelivered_record_is_refused() -> None:
    holes = delivered(10, 14, start=10)
    for offset in (12, 15, 1000):
        with pytest.raises(NotInFlightError) as unknown:
            holes.done(offset, TOKEN)
        assert (unknown.value.partition, unknown.value.offset) == (WEB, offset)
    assert holes.undone == 2


@pytest.mark.parametrize("token", [TOKEN - 1, TOKEN + 1])
def test_p16_finishing_a_record_of_another_claim_is_refused(token: int) -> None:
    one = delivered(0)
    with pytest.raises(LostClaimError) as lost:
        one.done(0, token)
    assert (lost.value.partition, lost.value.offset, lost.value.token) == (WEB, 0, token)
    assert isinstance(lost.value, FencedError)
    assert one.undone == 1


def test_i6_a_poison_record_stops_delivery_after_the_bound() -> None:
    full = delivered(0, 1, 2, in_flight_max=3)
    assert full.capacity == 0
    full.done(1, TOKEN)
    full.done(2, TOKEN)
    assert (full.capacity, full.undone) == (0, 1)
    with pytest.raises(ValueError):
        full.deliver(3)
    full.done(0, TOKEN)
    assert full.capacity == 3


def test_records_are_handed_out_in_the_order_of_the_log() -> None:
    one = delivered(5, start=5)
    for offset in (5, 4):
        with pytest.raises(ValueError):
            one.deliver(offset)


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ValueError):
        acks(in_flight_max=0)


@given(data=st.data(), offsets=st.sets(st.integers(0, 200), min_size=1, max_size=40))
def test_in_any_order_the_position_is_the_lowest_offset_that_is_not_done(
    data: st.DataObject, offsets: set[int]
) -> None:
    order = data.draw(st.permutations(sorted(offsets)))
    result = delivered(*sorted(offsets))
    undone = set(offsets)
    for offset in order:
        assert result.position == min(undone)
        result.done(offset, TOKEN)
        undone.remove(offset)
    assert result.position == max(offsets) + 1
