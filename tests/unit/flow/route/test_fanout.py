"""One pass files every record of a mixed topic under its type and day, and counts each of them once."""

from __future__ import annotations

import json
import pickle
import struct
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from penstock.errors import TransientError
from penstock.failpoints import Failpoint
from penstock.flow.columns.seen_types import from_json
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import RoutedSlice, TypeFlow
from penstock.flow.route.type_reader import SHOWS_NOTHING
from penstock.flow.stage import log_parts
from penstock.flow.write.manifest import Counts, PartitionKey
from penstock.flow.write.report import UNROUTED, Share
from penstock.job.spec import (
    DecodeSpec,
    NewColumnPolicy,
    Policies,
    RouteSpec,
    TombstonePolicy,
)
from penstock.job.sql_text import parse_expression as parse
from penstock.logs.log import EpochMark
from tests.unit.flow.kafka_batches import types_of
from tests.unit.flow.route.fanouts import KEY, TOPIC_ID, Record, fanout_flow, kafka_part, run, type_flow

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def orders(**changes: Any) -> TypeFlow:
    return type_flow("orders", SCHEMA, **{"values": ("order", "7"), "event_time": parse("at"), **changes})


def visits() -> TypeFlow:
    return type_flow("visits", SCHEMA, values=("visit",), event_time=parse("at"))


def record(kind: object, number: object, day: int = 7) -> dict[str, object]:
    return {"type": kind, "n": number, "at": f"2026-01-{day:02}T01:02:03.5Z"}


def piece(takes: dict[str, int], counts: dict[str, int] | None = None, *, main: bool = True) -> RoutedSlice:
    return RoutedSlice(TOPIC_ID, 100, 1_000, 1, takes, counts or {}, main)


def test_types_and_days_become_files_with_their_facts(tmp_path: Path) -> None:
    values = [record("order", 0), record("visit", 1, day=5), record(7, 2, day=6), record("order", 3)]
    outcome = run(
        fanout_flow(tmp_path, [orders(), visits()], piece({"orders": 100, "visits": 100})), kafka_part(values)
    )
    assert {name: share.days for name, share in outcome.shares.items()} == {
        "orders": {"2026-01-06": 1, "2026-01-07": 2},
        "visits": {"2026-01-05": 1},
    }
    files = {file.partition_values["day"]: file for file in outcome.shares["orders"].files}
    file = files["2026-01-07"]
    assert file.path.startswith(f"_staged/orders/s.{TOPIC_ID}.p3.100.1000.") and file.path.endswith(".pq")
    assert (file.topic, file.partition, file.rows, file.last_offset) == ("orders", 3, 2, 103)
    places = {"minValues": {"offset": 100}, "maxValues": {"offset": 103}, "nullCount": {"offset": 0}}
    assert json.loads(file.stats) == {"numRecords": 2, **places}
    assert file.size_bytes == (Path(outcome.flow.root_url) / file.path).stat().st_size
    assert [row["n"] for row in outcome.table(file).to_pylist()] == [0, 3]
    assert outcome.table(file).column_names == ["n", "at", "offset"]
    share = outcome.shares["orders"]
    # 2026-01-07T01:02:03.5Z
    assert (share.counts, share.first, share.event_ms_max) == (Counts(3, 3), 100, 1_767_747_723_500)


def test_no_records_give_no_shares(tmp_path: Path) -> None:
    flow = fanout_flow(tmp_path, [orders()])
    assert run(flow).report.shares == {}
    assert run(flow, kafka_part([])).report.shares == {}
    assert not Path(flow.root_url).exists()


def test_the_flow_can_be_pickled(tmp_path: Path) -> None:
    flow = pickle.loads(pickle.dumps(fanout_flow(tmp_path, [orders()])))
    assert run(flow, kafka_part([record("order", 1)])).offsets("orders") == [100]


def test_a_tombstone_follows_its_policy(tmp_path: Path) -> None:
    def share(policy: TombstonePolicy, route: RouteSpec) -> dict[str, Share]:
        kind = type_flow("orders", SCHEMA, values=("k",))
        flow = fanout_flow(tmp_path, [kind], route=route, on=Policies(tombstone=policy))
        return dict(run(flow, kafka_part([None], keys=[b"k"])).shares)

    field, key = RouteSpec("field", ("type",)), RouteSpec("key")
    for route in (field, key):
        assert share("filter", route)[UNROUTED].counts == Counts(read=1, filtered=1)
        assert share("quarantine", route)[UNROUTED].counts == Counts(read=1, quarantined=1)
    assert share("row", field)[UNROUTED].counts == Counts(read=1, quarantined=1)
    assert share("row", key).keys() == {"orders"}
    assert share("row", key)["orders"].counts == Counts(read=1, written=1)


def test_unknown_types_are_quarantined_or_dropped(tmp_path: Path) -> None:
    values: list[Record] = [record("order", 0), {"type": "new"}, {"type": None}, b"no JSON"]
    part = kafka_part(values, keys=[b"a", b"b", None, b"d"])

    def outcome(policy: Literal["quarantine", "drop"]) -> Any:
        route = RouteSpec("field", ("type",), policy)
        return run(fanout_flow(tmp_path, [orders()], route=route), part)

    assert set(outcome("quarantine").bad()) == {101, 102, 103}
    dropped = outcome("drop")
    assert dropped.shares[UNROUTED].counts == Counts(read=3, filtered=2, quarantined=1)


def test_a_type_that_takes_no_part_is_only_counted_and_counted_right(tmp_path: Path) -> None:
    decoy = b'{"x": {"type": "visit"}, "type": "order", "at": "2026-01-07T00:00:00Z"}'
    values: list[Record] = [record("visit", 1), decoy, record("visit", "not a number"), record("order", 3)]
    flow = fanout_flow(tmp_path, [orders(), visits()], piece({"orders": 100}))
    part = kafka_part(values)
    outcome = run(flow, part)
    assert outcome.offsets("orders") == [101, 103]
    assert outcome.shares["visits"] == Share(Counts(read=2), first=100)


def test_a_catch_up_reads_only_its_own_types(tmp_path: Path) -> None:
    values: list[Record] = [
        record("order", 0),
        record("visit", 1),
        record("who", 2),
        None,
        b"no JSON",
        record("order", 5),
    ]
    flow = fanout_flow(tmp_path, [orders(), visits()], piece({"orders": 103}, main=False))
    outcome = run(flow, kafka_part(values))
    assert outcome.shares == {**outcome.shares, UNROUTED: Share(Counts(read=5, filtered=5))}
    assert (outcome.shares["orders"].counts, outcome.shares["orders"].first) == (Counts(1, 1), 105)
    assert not outcome.shares["orders"].quarantine_files


def test_records_that_a_type_has_already_are_skipped(tmp_path: Path) -> None:
    part = kafka_part([record("order", number) for number in range(5)])
    outcome = run(fanout_flow(tmp_path, [orders()], piece({"orders": 103})), part)
    assert outcome.offsets("orders") == [103, 104]
    share = outcome.shares["orders"]
    assert (share.counts, share.first) == (Counts(read=5, written=2, skipped=3), 100)
    assert ".p3.103.1000." in share.files[0].path


@pytest.mark.parametrize("main", [True, False])
def test_records_before_the_start_of_a_type_are_not_written_to_it(tmp_path: Path, main: bool) -> None:
    part = kafka_part([record("order", number) for number in range(5)])
    flow = fanout_flow(tmp_path, [orders()], piece({"orders": 103}, {"orders": 102}, main=main))
    share = run(flow, part).shares["orders"]
    assert (share.counts, share.first) == (Counts(read=3, written=2, skipped=1), 102)


def test_a_type_that_keeps_a_table_of_its_own_is_staged_in_its_days_folder(tmp_path: Path) -> None:
    outcome = run(fanout_flow(tmp_path, [orders()], staged_folder=""), kafka_part([record("order", 1)]))
    assert outcome.shares["orders"].files[0].path.startswith("orders/day=2026-01-07/s.")


def test_a_bad_record_is_in_its_types_own_quarantine_file(tmp_path: Path) -> None:
    values = [record("order", "x"), record("visit", 1), record("visit", "y"), {"type": "order", "n": 1}]
    outcome = run(fanout_flow(tmp_path, [orders(), visits()]), kafka_part(values))
    assert outcome.bad("orders") == {100: "n: expected long, found string", 103: "has no event time"}
    assert set(outcome.bad("visits")) == {102}
    assert outcome.shares["orders"].counts == Counts(read=2, quarantined=2)
    assert outcome.report.first_error.startswith("orders/3 offset 100: n: expected long")
    (file,) = outcome.shares["orders"].quarantine_files
    assert file.path.startswith(f"s.{TOPIC_ID}.p3.100.")
    assert '"numRecords":2' in file.stats.replace(" ", "")


def test_a_time_out_of_bounds_is_quarantined(tmp_path: Path) -> None:
    values = [record("order", 0), {**record("order", 1), "at": "1970-01-01T00:00:00Z"}]
    values.append({**record("order", 2), "at": "2100-01-01T00:00:00Z"})
    held = run(fanout_flow(tmp_path, [orders()]), kafka_part(values))
    assert {offset: reason.split(" is ")[0] for offset, reason in held.bad("orders").items()} == {
        101: "event time 1970-01-01T00:00:00Z",
        102: "event time 2100-01-01T00:00:00Z",
    }
    assert held.offsets("orders") == [100] and held.shares["orders"].days == {"2026-01-07": 1}


def test_a_type_without_a_schema_only_reports_the_types_of_its_fields(tmp_path: Path) -> None:
    values: list[Record] = [
        {"type": "order", "n": 1},
        {"type": "order", "n": 1.5, "x": {"y": "z"}},
        {"type": "order", "n": None},
    ]
    outcome = run(fanout_flow(tmp_path, [orders(decoded=None, target=None), visits()]), kafka_part(values))
    share = outcome.shares["orders"]
    assert types_of(from_json(share.new_fields)) == {
        "type": pa.string(),
        "n": pa.float64(),
        "x": pa.struct([("y", pa.string())]),
    }
    assert (share.counts, share.files) == (Counts(read=3), ())


def test_records_that_show_no_field_of_a_type_without_a_schema_are_bad(tmp_path: Path) -> None:
    values: list[Record] = [b"{}", b"broken", {"a b": 1, "day": 2, "n": None}]
    flow = fanout_flow(tmp_path, [type_flow("orders", None)], route=RouteSpec("key"))
    outcome = run(flow, kafka_part(values, keys=[b"orders"] * 3))
    share = outcome.shares["orders"]
    assert (share.counts, share.new_fields) == (Counts(read=3, quarantined=3), "")
    reasons = {offset: why.split(": ")[0] for offset, why in outcome.bad("orders").items()}
    assert reasons == {100: SHOWS_NOTHING, 101: "not JSON", 102: SHOWS_NOTHING}


def test_new_fields_are_reported_for_their_type(tmp_path: Path) -> None:
    values: list[Record] = [{**record("order", 1), "more": 1}, record("visit", 2)]
    outcome = run(
        fanout_flow(tmp_path, [orders(), visits()]), kafka_part(values), kafka_part([record("order", 3)], 102)
    )
    assert types_of(from_json(outcome.shares["orders"].new_fields)) == {"more": pa.int64()}
    assert outcome.shares["visits"].new_fields == ""


@pytest.mark.parametrize("policy", ["add", "quarantine"])
def test_a_record_with_a_name_that_is_not_utf8_is_quarantined(tmp_path: Path, policy: NewColumnPolicy) -> None:
    """JSON can hold half a surrogate pair, which UTF-8 cannot."""
    flow = fanout_flow(tmp_path, [orders(), visits()], on=Policies(new_column=policy))
    share = run(flow, kafka_part([{**record("order", 0), "\ud800": 1}])).shares["orders"]
    assert (share.counts, share.new_fields, share.failed) == (Counts(read=1, quarantined=1), "", "")


def test_a_folder_that_cannot_be_written_fails_its_type_alone(tmp_path: Path) -> None:
    flow = fanout_flow(tmp_path, [orders(), visits()], row_group_bytes_max=1)
    blocked = Path(flow.root_url) / "_staged" / "orders"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file where the folder should be")
    values = [record("order", 0), record("visit", 1), record("order", "bad")]
    outcome = run(flow, kafka_part(values), kafka_part(values, 103))
    share = outcome.shares["orders"]
    assert share.failed and share.counts == Counts(read=4)
    assert (share.files, share.quarantine_files, share.days) == ((), (), {})
    assert outcome.offsets("visits") == [101, 104]


def test_columns_that_do_not_fit_the_files_fail_their_type_alone(tmp_path: Path) -> None:
    narrow = orders(target=pa.schema([("n", pa.int8())]))
    outcome = run(fanout_flow(tmp_path, [narrow, visits()]), kafka_part([record("order", 1_000), record("visit", 1)]))
    assert outcome.shares["orders"].failed and outcome.offsets("visits") == [101]


def test_a_quarantine_of_no_type_that_cannot_be_written_stops_the_task(tmp_path: Path) -> None:
    flow = fanout_flow(tmp_path, [orders()])
    Path(flow.quarantine_url).write_text("a file where the folder should be")
    with pytest.raises(Exception, match="quarantine"):
        run(flow, kafka_part([record("who", 1), record("order", 2)]))


def test_routes_by_key_header_and_envelope(tmp_path: Path) -> None:
    kind = type_flow("orders", pa.schema([("value", pa.binary())]), values=("7",))
    body = struct.pack(">iqii", 7, 0, 1, 1) + b"hb"
    other = struct.pack(">iqii", 8, 0, 0, 0)
    decode = DecodeSpec("raw")
    part = kafka_part(
        [body, other, body[:-1]], keys=[b"7", b"8", None], headers=[[{"key": "t", "value": b"7"}], None, None]
    )
    for route in (RouteSpec("key"), RouteSpec("header", ("t",)), RouteSpec("envelope")):
        outcome = run(fanout_flow(tmp_path, [kind], route=route, decode=decode), part)
        assert outcome.rows("orders") == [{"value": body, "offset": 100}]
        assert set(outcome.bad()) == {101, 102}
        assert outcome.bad()[102].startswith("envelope is broken" if route.by == "envelope" else "has no type")


def unmarked(key: PartitionKey, mark: EpochMark) -> None:
    raise AssertionError(f"no mark is among these records, but {mark} of {key}")


def test_small_batches_are_decoded_together_and_partitions_are_kept_apart() -> None:
    parts = [kafka_part([b"{}"] * 40, 100 + 40 * number) for number in range(5)]
    other = kafka_part([b"{}"]).set_column(1, "partition", pa.array([4], pa.int32()))
    result = [(key, part.num_rows) for key, part in log_parts([*parts, other, *parts[:1]], unmarked, 100)]
    assert result == [(KEY, 120), (KEY, 80), (("orders", 4), 1), (KEY, 40)]
    assert [part.num_rows for _, part in log_parts([parts[0]] * 2, unmarked, 1)] == [40, 40]


def test_a_failing_step_fails_the_task_and_no_type(tmp_path: Path) -> None:
    flow = fanout_flow(tmp_path, [orders()], failpoint=Failpoint("writing", "error"))
    with pytest.raises(TransientError):
        list(fanout_stage(flow)([kafka_part([record("order", 1)])]))


def test_many_types_and_days_are_all_there_once(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(18)]
    types = [type_flow(name, SCHEMA, event_time=parse("at")) for name in names]
    values = [record(names[number % 18], number, 1 + number // 18 % 3) for number in range(5_400)]
    flow = fanout_flow(tmp_path, types)
    outcome = run(flow, *(kafka_part(values[start : start + 700], 100 + start) for start in range(0, 5_400, 700)))
    assert sum(len(outcome.shares[name].files) for name in names) == 54
    counter = Counter((name, row["n"], row["at"].day) for name in names for row in outcome.rows(name))
    assert counter == Counter((names[number % 18], number, 1 + number // 18 % 3) for number in range(5_400))
