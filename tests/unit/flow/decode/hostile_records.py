"""Orders as a good producer writes them, and as a hostile one does: what a decoder must distinguish."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa

NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("user", pa.struct([("name", pa.string()), ("age", pa.int32()), ("vip", pa.bool_())])),
        ("amount", pa.decimal128(12, 2)),
        ("tax", pa.decimal128(12, 4)),
        ("lines", pa.list_(pa.struct([("sku", pa.string()), ("count", pa.int16()), ("price", pa.decimal128(10, 2))]))),
        ("score", pa.float64()),
        ("ratio", pa.float32()),
        ("day", pa.date32()),
        ("picture", pa.binary()),
    ]
)

HOSTILE = ["9" * 310, "-" + "9" * 310, "1" + "0" * 308, "1" + "0" * 309, "3.4028235e38", "3.4028236e38", "3.5e38"]
HOSTILE += ["0e-400", "-0e-400", "0e400", "-0e999", "0e-99999", "0e99999999999999999999", "0e-99999999999999999999"]
HOSTILE += [
    "1e-99999999999999999999",
    "1e2147483648",
    "1." + "0" * 300,
    "0." + "0" * 400 + "1",
    "1e10",
    "100e-2",
    "1e2",
]
HOSTILE += [
    "1.0",
    "1.50",
    "0.001",
    "1.005",
    "9999999999.99",
    "10000000000",
    "9" * 38,
    "9" * 39,
    "9" * 77,
    "1e37",
    "1e38",
]
HOSTILE += ["0.1" + "0" * 60, "0." + "3" * 40, "1.1102230246251565e-16", "NaN", "-NaN", "Infinity", "-Infinity", "Inf"]
HOSTILE += [
    "-Inf",
    "-0",
    "-0.0",
    "5.0",
    "2147483647",
    "2147483648",
    "32768",
    "9223372036854775808",
    "1.7976931348623159e308",
]
"""Numbers at the ends of columns and beyond."""

_TEXTS = ["", "abc", "1.5", "1.555", "1e400", "0e-400", "NaN", " 1", "1_0", "+5", "5.", ".5", "YWJj", "YWJ", "===="]
_TEXTS += [
    "2024-05-06",
    "2024-02-30",
    "2023-02-29",
    "0000-01-01",
    "9999-12-31",
    "2024-05-06T07:08:09Z",
    "2024-05-06t07:08:09z",
]
_TEXTS += ["2024-05-06 07:08", "2024-05-06T07", "2024-05-06T24:00:00Z", "2024-05-06T07:08:60Z", "2024-13-01T00:00:00Z"]
_TEXTS += ["2024-05-06T07:08:09.123456789+01:30", "2024-05-06T07:08:09.1234567891Z", "9999-12-31T23:59:59-23:59"]
_TEXTS += [
    "0000-01-01T00:00:00+23:59",
    "2024-05-06T07:08:09+24:00",
    "2024-05-06T07:08:09+0160",
    "\u00e9",
    "\U0001f600",
    "\0",
]


def hostile_records(random: Random, count: int, bad_share: float) -> list[bytes]:
    """So many records, of which about that share is damaged in some way; a damage may be harmless."""
    return [
        _damaged(random, _order(random, n)) if random.random() < bad_share else _written(_order(random, n))
        for n in range(count)
    ]


def _order(random: Random, number: int) -> dict[str, Any]:
    lines = [{"sku": f"sku-{random.randint(0, 99)}", "count": 1, "price": 1.25} for _ in range(random.randint(0, 2))]
    order = {
        "id": number,
        "at": f"2024-05-{random.randint(1, 28):02}T07:08:09.{random.randint(0, 999):03}Z",
        "user": {"name": random.choice(["ann", "bo\u00eb", '"q"', None]), "age": random.randint(0, 99), "vip": True},
        "amount": round(random.random() * 1000, 2),
        "tax": f"{random.random() * 1000:.4f}",
        "lines": lines,
        "score": random.random(),
        "ratio": random.choice([0.5, 0.1, 16777217, 1e-50]),
        "day": "2024-05-06",
        "picture": "AAH/",
    }
    return {name: value for name, value in order.items() if random.random() > 0.03}


def _written(order: dict[str, Any]) -> bytes:
    return json.dumps(order, ensure_ascii=False).encode()


def _damaged(random: Random, order: dict[str, Any]) -> bytes:
    damage = random.choice(
        [_with_hostile_value] * 8 + [_cut, _flipped, _given_twice, _not_an_object, _unknown_field, _deep]
    )
    return damage(random, order)


def _with_hostile_value(random: Random, order: dict[str, Any]) -> bytes:
    """One value somewhere in the order is replaced by a text that a producer might write there."""
    homes: list[tuple[Any, Any]] = [(order, name) for name in order]
    for child in (order.get("user"), *order.get("lines", [])):
        homes += [(child, name) for name in child or ()]
    home, name = random.choice(homes or [(order, "id")])
    home[name] = "@@"
    anything = ["null", "true", "[]", "{}", "[1]", '{"a":1}', "[null]", '"\\ud800"']
    value = random.choice([random.choice(HOSTILE), json.dumps(random.choice(_TEXTS)), random.choice(anything)])
    return _written(order).replace(b'"@@"', value.encode())


def _cut(random: Random, order: dict[str, Any]) -> bytes:
    record = _written(order)
    return record[: random.randint(0, len(record))]


def _flipped(random: Random, order: dict[str, Any]) -> bytes:
    record = bytearray(_written(order))
    for _ in range(random.randint(1, 3)):
        record[random.randrange(len(record))] = random.choice(b'\x00\n "\\{}[]:,0e-\xff\xc3')
    return bytes(record)


def _given_twice(random: Random, order: dict[str, Any]) -> bytes:
    twice = random.choice([b'"id": 1', b'"user": null', b'"x": 1, "x": 2', b'"lines": [{"sku": "a", "sku": "b"}]'])
    return _written(order)[:-1] + (b", " if order else b"") + twice + b"}"


def _not_an_object(random: Random, order: dict[str, Any]) -> bytes:
    record = _written(order)
    return random.choice(
        [b"", b"null", b"17", b"[%b]" % record, record + record, b" %b\n" % record, b"\xef\xbb\xbf" + record]
    )


def _unknown_field(random: Random, order: dict[str, Any]) -> bytes:
    value = random.choice([*HOSTILE, '"x"', "[1, {}]", '{"id": 1, "id": 2}', '"\\ud800"']).encode()
    return b'{"unknown": %b%b' % (value, b", " if order else b"") + _written(order)[1:]


def _deep(random: Random, order: dict[str, Any]) -> bytes:
    depth = random.choice([499, 500, 600])
    return b'{"unknown": %b%b%b' % (b"[" * depth, b"]" * depth, b", " if order else b"") + _written(order)[1:]
