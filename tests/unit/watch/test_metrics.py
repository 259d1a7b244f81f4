"""Events become metrics, and partitions that a process no longer holds are removed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.events import (
    BatchCommitted,
    ClaimLost,
    ClaimReleased,
    ClaimWon,
    Event,
    JobCrashed,
    JobFailed,
    JobStarted,
    Mirrored,
    MirrorFailed,
    PartitionProgress,
    ProgressMeasured,
    Retrying,
    RoundDone,
    SliceDropped,
    SliceRefused,
)
from penstock.reporting.metrics import Add, Meter, Metric, PutAll
from penstock.reporting.verdicts import Judgement, Verdict
from penstock.tables.delta.kind import DeltaKind
from penstock.tables.export.monitoring import (
    ExportRules,
    TypeCannotBeWritten,
    TypeWrittenAgain,
)
from penstock.tables.registry import KINDS
from penstock.watch.judging import Judged
from penstock.watch.metrics import OF_ALL_JOBS, STEPS, JobMetrics, Metrics, page

AWAY = Retrying("the broker is away", "", 1.0)
EVERY = (*OF_ALL_JOBS, *(metric for kind in KINDS.all() for metric in kind.metrics))
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(now=lambda: 1_700_000_000.0)


@pytest.fixture
def listener(metrics: Metrics) -> JobMetrics:
    return metrics.listener("fan", KINDS["export"])


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"job": "fan", **labels})


def partitions(metrics: Metrics) -> set[str]:
    """Every partition that any metric shows."""
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {sample.labels["partition"] for sample in samples if "partition" in sample.labels}


def rules(*places: str) -> ExportRules:
    return ExportRules(measured={"discrepancy_records": dict.fromkeys(places, 7)})


def progress(**positions: int) -> ProgressMeasured:
    """Partitions that end at offset 100, of which the log has those from 10 on."""
    return ProgressMeasured({name: PartitionProgress(at, 10, 100, 60.0, 600.0) for name, at in positions.items()}, 2.5)


def test_the_metrics_page_matches_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_metric_name_is_unique_and_has_the_suffix_of_its_kind() -> None:
    names = [item.name for item in EVERY]
    assert len(names) == len(set(names))
    assert all(metric.name.startswith("penstock_") for metric in EVERY)
    assert all((metric.kind == "counter") == metric.name.endswith("_total") for metric in EVERY)


def test_batch_counters_add_up(metrics: Metrics, listener: JobMetrics) -> None:
    listener.event(BatchCommitted("x", 4, False, 10, 7, 2, 1, 3, 500, 1.5))
    listener.event(BatchCommitted("y", 5, True, 10, 7, 2, 1, 3, 500, 1.5))
    assert value(metrics, "penstock_batches_total", kind="new") == 1
    assert value(metrics, "penstock_batches_total", kind="catch_up") == 1
    counts = [
        value(metrics, f"penstock_records_{name}_total") for name in ("read", "written", "quarantined", "filtered")
    ]
    assert counts == [20, 14, 4, 2]
    assert value(metrics, "penstock_files_written_total") == 6
    assert value(metrics, "penstock_bytes_written_total") == 1000
    assert value(metrics, "penstock_batch_seconds_sum") == 3.0
    assert value(metrics, "penstock_batch_seconds_bucket", le="2.0") == 2
    assert value(metrics, "penstock_last_commit_timestamp_seconds") == 1_700_000_000.0


def test_error_counters_start_at_zero(metrics: Metrics, listener: JobMetrics) -> None:
    assert value(metrics, "penstock_retries_total") == 0
    refused, dropped = SliceRefused("events/0", "old"), SliceDropped("events/0", "lost")
    for event in (AWAY, AWAY, refused, dropped, MirrorFailed("away"), JobFailed("UserError", "so it is", "")):
        listener.event(event)
    counted = ("retries", "slices_refused", "slices_dropped", "mirror_failures", "job_failures")
    assert [value(metrics, f"penstock_{name}_total") for name in counted] == [2, 1, 1, 1, 1]


def test_job_running_is_1_until_the_job_stops_or_fails(metrics: Metrics, listener: JobMetrics) -> None:
    listener.event(JobStarted(once=False))
    assert value(metrics, "penstock_job_running") == 1
    listener.event(JobCrashed(error="ZeroDivisionError", reason=""))
    assert value(metrics, "penstock_job_running") == 0


def test_jobs_are_distinguished(metrics: Metrics, listener: JobMetrics) -> None:
    metrics.listener("other", KINDS["delta"]).event(AWAY)
    assert value(metrics, "penstock_retries_total") == 0
    assert value(metrics, "penstock_retries_total", job="other") == 1


def test_a_type_fails_until_it_is_written_again(metrics: Metrics, listener: JobMetrics) -> None:
    listener.event(TypeCannotBeWritten(type="fs", reason="no permission"))
    listener.event(TypeCannotBeWritten(type="fs", reason="disk full"))
    assert value(metrics, "penstock_type_failing", type="fs") == 1
    listener.event(TypeWrittenAgain(type="fs"))
    assert value(metrics, "penstock_type_failing", type="fs") == 0


def test_the_rules_are_shown_as_they_are_measured(metrics: Metrics, listener: JobMetrics) -> None:
    listener.event(
        ExportRules(
            measured={
                "failed_writes_percent": {"a": 50.0, "b": 0.0},
                "discrepancy_records": {"events/0": 60},
                "type_lag_records": {"a": 60, "b": 0},
            },
            alerts={"failed_writes": ["too many"], "discrepancy": []},
        )
    )
    assert value(metrics, "penstock_discrepancy_records", partition="events/0") == 60
    assert value(metrics, "penstock_failed_writes_percent", type="a") == 50.0
    assert value(metrics, "penstock_type_lag_records", type="a") == 60
    assert value(metrics, "penstock_alert", rule="failed_writes") == 1
    assert value(metrics, "penstock_alert", rule="discrepancy") == 0
    assert value(metrics, "penstock_alert", rule="lag") is None


def test_an_alert_ends_when_its_rule_holds_again(metrics: Metrics, listener: JobMetrics) -> None:
    listener.event(ExportRules(alerts={"lag": ["too far"]}))
    listener.event(ExportRules(alerts={"lag": []}))
    assert value(metrics, "penstock_alert", rule="lag") == 0


def test_partitions_that_are_no_longer_held_are_no_longer_shown(metrics: Metrics, listener: JobMetrics) -> None:
    listener.event(rules("events/0", "events/1"))
    assert partitions(metrics) == {"events/0", "events/1"}
    listener.event(rules("events/1"))
    assert partitions(metrics) == {"events/1"}


@pytest.mark.parametrize("event", [ClaimLost("events/0", 3), ClaimReleased("events/0", "")])
def test_metrics_of_a_lost_partition_are_removed(event: Event, metrics: Metrics, listener: JobMetrics) -> None:
    for partition in ("events/0", "events/1"):
        listener.event(ClaimWon(partition=partition, token=3))
    listener.event(rules("events/0", "events/1"))
    listener.event(event)
    assert partitions(metrics) == {"events/1"}
    assert value(metrics, "penstock_claims_held") == 1
    listener.event(rules("events/1"))
    assert partitions(metrics) == {"events/1"}


def test_a_claim_that_is_won_again_after_an_outage_counts_once(metrics: Metrics, listener: JobMetrics) -> None:
    for token in (3, 4):
        listener.event(ClaimWon(partition="events/0", token=token))
    assert value(metrics, "penstock_claims_held") == 1


def test_releasing_a_partition_without_metrics_changes_nothing(metrics: Metrics, listener: JobMetrics) -> None:
    listener.event(ClaimReleased(partition="events/9", reason=""))
    assert partitions(metrics) == set()


def test_every_round_shows_where_each_partition_is(metrics: Metrics, listener: JobMetrics) -> None:
    listener.event(progress(a=0, b=70, c=100))
    shown = {
        name: [value(metrics, f"penstock_{name}", partition=partition) for partition in "abc"]
        for name in ("position", "log_end", "lag_records", "lag_seconds", "retention_share")
    }
    assert shown == {
        "position": [0, 70, 100],
        "log_end": [100, 100, 100],
        "lag_records": [90, 30, 0],
        "lag_seconds": [60, 60, 0],
        "retention_share": [0.1, 0.1, 0],
    }
    assert value(metrics, "penstock_heartbeat_age_seconds") == 2.5
    listener.event(RoundDone())
    assert value(metrics, "penstock_last_round_timestamp_seconds") == 1_700_000_000.0


def test_steps_and_file_sizes_of_a_batch_are_distributions(metrics: Metrics, listener: JobMetrics) -> None:
    steps = [value(metrics, "penstock_step_seconds_count", step=step) for step in STEPS]
    assert (steps, value(metrics, "penstock_file_bytes_count")) == ([0] * 6, 0), "zero from the start"
    listener.event(BatchCommitted("x", 4, steps={"plan": 0.1, "write": 3.0}, file_sizes=(500, 5_000_000)))
    listener.event(Mirrored(0.2))
    assert value(metrics, "penstock_step_seconds_sum", step="write") == 3.0
    assert value(metrics, "penstock_step_seconds_sum", step="mirror") == 0.2
    assert value(metrics, "penstock_file_bytes_bucket", le="1024.0") == 1
    assert value(metrics, "penstock_file_bytes_sum") == 5_000_500


def test_verdicts_are_numbers_of_which_the_greater_is_worse(metrics: Metrics, listener: JobMetrics) -> None:
    stalled, fine = Judgement(Verdict.STALL, "no move"), Judgement()
    listener.event(Judged({"lag": ["far"], "age": []}, stalled, {"events/0": stalled, "events/1": fine}))
    assert value(metrics, "penstock_job_verdict") == 2
    assert [value(metrics, "penstock_verdict", partition=f"events/{number}") for number in range(2)] == [2, 0]
    assert [value(metrics, "penstock_alert", rule=rule) for rule in ("lag", "age")] == [1, 0]


LEVEL = Metric("penstock_level_litres", "gauge", "What a tank holds.", ("job", "tank"))
SPILLS = Metric("penstock_spills_total", "counter", "Times that a tank ran over.")


class Spill(Event):
    litres: Mapping[str, float]


class TankKind(DeltaKind):
    """A kind of table for this test, with its own metrics."""

    name = "tank"
    metrics = (LEVEL, SPILLS)

    def meter(self) -> Meter:
        return lambda event: [PutAll(LEVEL, event.litres), Add(SPILLS)] if isinstance(event, Spill) else []


def test_a_kind_of_table_adds_its_own_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "tank", TankKind())
    metrics = Metrics()
    listener = metrics.listener("fan", KINDS["tank"])
    assert value(metrics, "penstock_spills_total") == 0
    listener.event(Spill({"north": 12, "south": 3}))
    listener.event(Spill({"north": 11}))
    assert value(metrics, "penstock_spills_total") == 2
    assert value(metrics, "penstock_level_litres", tank="north") == 11
    assert value(metrics, "penstock_level_litres", tank="south") is None
    assert "## Of jobs with `table.tank`" in page()
