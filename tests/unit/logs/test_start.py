"""Where a job without positions begins."""

from __future__ import annotations

import pytest

from penstock.errors import UserError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.log import Bounds, Partition, start_offset

ORDERS_0 = Partition("orders", "id-1", 0)
ORDERS_1 = Partition("orders", "id-1", 1)
BOUNDS = Bounds(10, 50)


def test_earliest_is_the_first_offset_that_the_log_still_has() -> None:
    assert start_offset("earliest", ORDERS_0, BOUNDS) == 10


def test_latest_is_the_last_stable_offset() -> None:
    assert start_offset("latest", ORDERS_0, BOUNDS) == 50


@pytest.mark.parametrize("offset", [10, 37, 50])
def test_an_explicit_offset_may_be_any_within_the_log_its_end_included(offset: int) -> None:
    assert start_offset({"orders": {0: offset}}, ORDERS_0, BOUNDS) == offset


@pytest.mark.parametrize("start", [{"orders": {0: 37}}, {"other": {1: 37}}, {}])
def test_a_partition_that_is_not_named_begins_at_its_beginning(start: dict[str, dict[int, int]]) -> None:
    assert start_offset(start, ORDERS_1, BOUNDS) == 10


@pytest.mark.parametrize("offset", [9, 51])
def test_an_explicit_offset_outside_the_log_is_refused_and_both_are_named(offset: int) -> None:
    with pytest.raises(UserError) as raised:
        start_offset({"orders": {0: offset}}, ORDERS_0, BOUNDS)
    assert f"start offset {offset} of orders/0" in raised.value.primary
    assert "[10, 50)" in raised.value.primary


def test_every_partition_is_resolved_by_itself() -> None:
    log = KafkaLog(KafkaLogSpec("127.0.0.1:1", topics=("orders",), start={"orders": {1: 7}}))
    bounds = {ORDERS_0: BOUNDS, ORDERS_1: Bounds(0, 9)}
    assert log.start_offsets([ORDERS_0, ORDERS_1], bounds) == {ORDERS_0: 10, ORDERS_1: 7}
    log.close()


def test_an_invalid_topic_pattern_is_refused() -> None:
    with pytest.raises(UserError) as raised:
        KafkaLog(KafkaLogSpec("127.0.0.1:1", topic_pattern="orders-["))
    assert "orders-[" in raised.value.primary


def test_a_client_setting_that_librdkafka_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(UserError) as raised:
        KafkaLog(KafkaLogSpec("127.0.0.1:1", topics=("t",), client_settings={"fetch.max.bites": "1"}))
    assert "fetch.max.bites" in raised.value.detail


def test_a_closed_log_is_not_used_again() -> None:
    log = KafkaLog(KafkaLogSpec("127.0.0.1:1", topics=("orders",)))
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.admin.cluster()
