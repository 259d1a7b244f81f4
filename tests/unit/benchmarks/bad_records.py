"""What bad JSON records cost: CPU per record, as a ratio to a batch that has none, all measured in one run.

python -m tests.unit.benchmarks.bad_records [RECORDS [ROUNDS]]: a line for each policy, share and kind of bad value.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.flow.decode.decoder import Decoder, decoder_for
from penstock.job.kafka_types import RECORD_SCHEMA
from penstock.job.spec import DecodeSpec, NewColumnPolicy, Policies

POLICIES: tuple[NewColumnPolicy, ...] = ("add", "ignore", "quarantine")
SHARES = (0.0005, 0.005, 0.05, 0.5)
RECORDS, ROUNDS = 20_000, 9


@dataclass(frozen=True, slots=True)
class BadCost:
    policy: NewColumnPolicy
    bad_share: float
    differing: bool
    """Every bad value is a new one."""
    clean_us: float
    """CPU microseconds per record of a batch without bad ones, the least of all rounds."""
    bad_us: float

    @property
    def ratio(self) -> float:
        return self.bad_us / self.clean_us


def bad_costs(records: int, rounds: int) -> Iterator[BadCost]:
    """Decode clean and bad batches in turn."""
    for policy in POLICIES:
        for share in SHARES:
            for differing in (False, True):
                # Two batches of each: a decoder may remember what it has seen, but not all of it.
                clean = [_batch(records, 0.0, differing, seed) for seed in (1, 2)]
                bad = [_batch(records, share, differing, seed) for seed in (1, 2)]
                clean_us = bad_us = float("inf")
                for _ in range(rounds):
                    clean_us = min(clean_us, _cpu_us(_decoder(policy), clean))
                    bad_us = min(bad_us, _cpu_us(_decoder(policy), bad))
                yield BadCost(policy, share, differing, clean_us, bad_us)


def _batch(records: int, share: float, differing: bool, seed: int) -> tuple[pa.RecordBatch, int]:
    values, bad = orders(records, share, differing=differing, seed=seed)
    columns = {
        "topic": pa.repeat("orders", records),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), records),
        "offset": pa.array(range(records), pa.int64()),
        "value": pa.array(values, pa.binary()),
    }
    arrays = [columns.get(field.name, pa.nulls(records, field.type)) for field in RECORD_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA), bad


def _decoder(policy: NewColumnPolicy) -> Decoder:
    return decoder_for(DecodeSpec("json"), ORDERS, Policies(new_column=policy))


def _cpu_us(decoder: Decoder, batches: list[tuple[pa.RecordBatch, int]]) -> float:
    began = time.process_time()
    num_rowss = [decoder.decode(batch).bad.kafka.num_rows for batch, _ in batches]
    spent = time.process_time() - began
    if num_rowss != [bad for _, bad in batches]:
        raise SystemExit(f"{num_rowss} records were found bad, not {[bad for _, bad in batches]}")
    return spent * 1e6 / sum(len(batch) for batch, _ in batches)


def main(arguments: list[str]) -> None:
    records, rounds, *_ = [*map(int, arguments), *(RECORDS, ROUNDS)[len(arguments) :]]
    for cost in bad_costs(records, rounds):
        values = "all differ" if cost.differing else "one a fault"
        print(
            f"{cost.policy:<11} {cost.bad_share:6.2%} bad, {values:<11} "
            f"clean {cost.clean_us:5.2f} us, bad {cost.bad_us:6.2f} us a record: {cost.ratio:.2f}x",
            flush=True,
        )


ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("user", pa.struct([("name", pa.string()), ("age", pa.int32()), ("vip", pa.bool_())])),
        ("amount", pa.decimal128(12, 2)),
        ("tax", pa.decimal128(12, 4)),
        ("lines", pa.list_(pa.struct([("sku", pa.string()), ("count", pa.int16()), ("price", pa.decimal128(10, 2))]))),
        ("score", pa.float64()),
        ("day", pa.date32()),
    ]
)

Fault = Callable[[dict[str, Any], int], bytes]
"""Writes an order with a mistake; the number makes its bad value differ from others."""


def orders(count: int, bad_share: float, *, differing: bool, seed: int = 20260301) -> tuple[list[bytes], int]:
    """So many records, and how many of them are bad: each fault in turn, always with one value or with a new one."""
    rng = random.Random(seed)
    faults = list(FAULTS.values())
    records: list[bytes] = []
    bad = 0
    for number in range(count):
        order = _order(rng, number)
        if rng.random() < bad_share:
            records.append(faults[bad % len(faults)](order, number if differing else 7))
            bad += 1
        else:
            records.append(_written(order))
    return records, bad


def order_with(fault: str, number: int) -> bytes:
    """An order with the named fault."""
    return FAULTS[fault](_order(random.Random(number), number), number)


def _order(rng: random.Random, number: int) -> dict[str, Any]:
    lines = [
        {"sku": f"sku-{rng.randrange(9999)}", "count": rng.randrange(9), "price": rng.randrange(99999) / 100}
        for _ in range(rng.randrange(1, 4))
    ]
    return {
        "id": number,
        "at": f"2026-03-{rng.randrange(1, 29):02}T07:08:{rng.randrange(60):02}.{rng.randrange(1000):03}Z",
        "user": {"name": f"user {rng.randrange(9999)}", "age": rng.randrange(99), "vip": rng.random() < 0.1},
        "amount": rng.randrange(9999999) / 100,
        "tax": f"{rng.random() * 1000:.4f}",
        "lines": lines,
        "score": rng.random(),
        "day": f"2026-03-{rng.randrange(1, 29):02}",
    }


def _written(order: dict[str, Any]) -> bytes:
    return json.dumps(order).encode()


def _with(path: str, value: Callable[[int], Any]) -> Fault:
    *above, name = path.split(".")

    def write(order: dict[str, Any], number: int) -> bytes:
        home: Any = order
        for item in above:
            home = home[item]
            home = home[0] if isinstance(home, list) else home
        home[name] = value(number)
        return _written(order)

    return write


def _twice(order: dict[str, Any], number: int) -> bytes:
    return b'%b, "id": %d}' % (_written(order)[:-1], number)


def _cut_off(order: dict[str, Any], number: int) -> bytes:
    record = _written(order)
    return record[: 100 + number % 50]


FAULTS: dict[str, Fault] = {
    "a text for an integer": _with("id", lambda number: f"order {number}"),
    "a fraction for an integer": _with("id", lambda number: number + 0.5),
    "an integer beyond 64 bits": _with("id", lambda number: 2**63 + number),
    "an integer beyond 32 bits": _with("user.age", lambda number: 2**31 + number),
    "a text that is not a time": _with("at", lambda number: f"at noon of day {number}"),
    "a number for a time": _with("at", lambda number: 1772323200000 + number),
    "a text for an integer inside": _with("user.age", lambda number: f"{number} years"),
    "a number for a flag inside": _with("user.vip", lambda number: number),
    "a text for an object": _with("user", lambda number: f"user {number}"),
    "a decimal of too many digits": _with("amount", lambda number: number + 0.123),
    "a text that is not a decimal": _with("tax", lambda number: f"{number} EUR"),
    "a text for an integer in a list": _with("lines.count", lambda number: f"{number} pieces"),
    "a decimal too large in a list": _with("lines.price", lambda number: 10**9 + number),
    "a text for a double": _with("score", lambda number: f"good {number}"),
    "a date that does not exist": _with("day", lambda number: f"2026-02-30 {number}"),
    "a field given twice": _twice,
    "a record cut off": _cut_off,
}


if __name__ == "__main__":
    main(sys.argv[1:])
