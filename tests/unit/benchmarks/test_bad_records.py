"""What the measurement of bad records measures: each fault is one, with the same reason in any batch."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.unit.benchmarks.bad_records import FAULTS, ORDERS, BadCost, bad_costs, order_with, orders
from tests.unit.flow.kafka_batches import decode_json, error_of


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("number", [7, 123_456_789])
def test_a_fault_among_good_orders_has_the_reason_that_it_has_alone(fault: str, number: int) -> None:
    good, bad = orders(50, 0.0, differing=False)
    assert bad == 0
    faulty = [order_with(fault, number) for _ in range(3)]
    decoded = decode_json(ORDERS, [*good[:20], *faulty, *good[20:]])
    assert decoded.rows.columns.num_rows == 50
    assert decoded.bad.errors.to_pylist() == [error_of(ORDERS, record) for record in faulty]


def test_the_measurement_counts_every_bad_record() -> None:
    costs = list(bad_costs(records=40, rounds=1))
    assert {cost.policy for cost in costs} == {"add", "ignore", "quarantine"}
    assert all(cost.ratio > 0 for cost in costs)
    assert BadCost("add", 0.05, False, clean_us=2.0, bad_us=3.0).ratio == 1.5
    assert pa.types.is_decimal(ORDERS.field("amount").type)
