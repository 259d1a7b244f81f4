"""Topics of many shapes, for which job files are drafted: keys, values and headers, a record per second."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.embedded.sample import SampleSize, web_requests

AT_MS = 1_772_359_200_000
"""2026-03-01T10:00:00Z, the Kafka timestamp of the first record."""
NUMBERS = range(40)


@dataclass(frozen=True, slots=True)
class Shape:
    """A topic, and the kind of table that is drafted for it."""

    name: str
    kind: str
    values: Sequence[Any]
    """Bytes, text, None, or what becomes JSON."""
    keys: Sequence[str | None] = ()
    headers: Sequence[tuple[str, str]] = ()
    arguments: Sequence[str] = ()
    bad: int = 0
    """Records that go to quarantine."""
    filtered: int = 0

    def encoded(self) -> list[bytes | None]:
        return [
            value
            if isinstance(value, bytes | None)
            else (value if isinstance(value, str) else json.dumps(value)).encode()
            for value in self.values
        ]


def _at(number: int) -> str:
    return f"2026-03-01T10:{number // 60:02}:{number % 60:02}Z"


def _change(op: str, number: int, before: Any, after: Any) -> dict[str, Any]:
    source = {"connector": "postgresql", "lsn": 100 + number, "ts_ms": AT_MS + 1000 * number}
    return {"before": before, "after": after, "op": op, "source": source, "ts_ms": AT_MS + 1000 * number + 200}


def _customer(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"customer {number}", "email": None if number % 2 else f"{number}@shop.example"}


ORDERS = [
    {
        "order_id": f"o-{number}",
        "created": AT_MS + 1000 * number - 250,
        "amount": f"{number}.{number:02}",
        "lines": number % 3,
        "coupon": "SPRING" if number % 4 == 0 else None,
    }
    for number in NUMBERS
]
SHAPES = [
    Shape("web_requests", "delta", [*web_requests(SampleSize(40))]),
    Shape("orders", "delta", ORDERS, [f"o-{number}" for number in NUMBERS]),
    Shape(
        "orders_by_key", "keyed", [*ORDERS, None], [*(f"o-{n}" for n in NUMBERS), "o-3"], arguments=["--as", "keyed"]
    ),
    Shape(
        "mixed",
        "export",
        [
            {"type": "click", "at": _at(number), "url": f"/{number % 5}"}
            if number % 2
            else {"type": "order/new", "at": _at(number), "price": number / 4, "items": [{"sku": "tea", "n": 1}]}
            for number in NUMBERS
        ],
    ),
    Shape(
        "mixed_by_header",
        "export",
        [{"url": "/"} if number % 2 else {"price": number} for number in NUMBERS],
        headers=[("event-type", "click" if number % 2 else "order") for number in NUMBERS],
    ),
    Shape(
        "telegraf",
        "rollup",
        [
            {"fields": {"idle": number}, "name": "cpu", "tags": {"host": "a"}, "timestamp": AT_MS // 1000 + number}
            for number in NUMBERS
        ],
    ),
    Shape("influx", "rollup", [f"cpu,host=a idle={number}.5,busy=1i {AT_MS + 1000 * number}" for number in NUMBERS]),
    Shape(
        "debezium",
        "keyed",
        [
            *(_change("c", number, None, _customer(number)) for number in range(20)),
            _change("u", 21, {"id": 3}, {"id": 3, "name": "renamed", "email": None}),
            _change("d", 22, {"id": 4}, None),
            None,
        ],
        [json.dumps({"id": number}) for number in [*range(20), 3, 4, 4]],
        filtered=1,
    ),
    Shape(
        "debezium_with_schemas",
        "keyed",
        [
            {"schema": {"type": "struct"}, "payload": _change("c", number, None, _customer(number))}
            for number in NUMBERS
        ],
        [json.dumps({"schema": {"type": "struct"}, "payload": {"id": number}}) for number in NUMBERS],
    ),
    Shape("avro", "delta", [bytes([0, 0, 0, 0, 7, 6, *b"tea", 2 * number]) for number in NUMBERS]),
    Shape("gzip", "delta", [gzip.compress(json.dumps({"at": _at(n), "n": n}).encode(), mtime=0) for n in NUMBERS]),
    Shape(
        "nested",
        "delta",
        [
            {
                "meta": {"producer": {"timestamp": _at(number), "host": "a"}},
                "items": [{"sku": f"s-{item}", "prices": [1.5, 2]} for item in range(number % 3)],
                "tags": {f"tag{number}-{index}": "x" for index in range(2)},
            }
            for number in NUMBERS
        ],
    ),
    Shape(
        "half_broken",
        "delta",
        [{"date": _at(number), "on": True} if number % 2 else '{"date": "2026-03' for number in range(200)],
        bad=100,
    ),
    Shape(
        "several_kinds",
        "delta",
        [
            {
                "at": _at(number),
                "amount": "n/a" if number == 7 else number,
                "sent": _at(1) if number else "now",
                "my field": 1,
            }
            for number in NUMBERS
        ],
        bad=1,
    ),
    Shape("empty", "delta", []),
    Shape("binary", "delta", [bytes([255, 254, number]) for number in NUMBERS]),
]
