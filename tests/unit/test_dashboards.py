"""The dashboard and the rules name metrics and labels that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.reporting.metrics import Metric
from penstock.tables.registry import KINDS
from penstock.watch.metrics import OF_ALL_JOBS

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = ("grafana/penstock.json", "prometheus/rules.yaml", "prometheus/rules-test.yaml")
EVERY = {metric.name: metric for metric in (*OF_ALL_JOBS, *(it for kind in KINDS.all() for it in kind.metrics))}
OF_PROMETHEUS = {"instance", "le"}
NAME = re.compile(r"\bpenstock_\w+")
LABELED = re.compile(r"\b(?P<name>penstock_\w+)\{(?P<labels>[^}]*)\}")
GROUPED = re.compile(r"\bby \((?P<labels>[^)]*)\) \((?P<rest>.*)")


def metric_of(name: str) -> Metric | None:
    """The metric of a series; a histogram has three."""
    metric = EVERY.get(re.sub(r"_(bucket|sum|count)$", "", name))
    return metric if metric is not None and metric.kind == "histogram" else EVERY.get(name)


@pytest.mark.parametrize("file", FILES)
def test_every_metric_that_a_file_names_exists(file: str) -> None:
    names = set(NAME.findall((DEPLOY / file).read_text()))
    assert names
    assert [name for name in sorted(names) if metric_of(name) is None] == []


@pytest.mark.parametrize("file", FILES)
def test_labels_of_selectors_are_those_of_the_metric(file: str) -> None:
    text = (DEPLOY / file).read_text().replace('\\"', '"')
    for selector in LABELED.finditer(text):
        metric = metric_of(selector["name"])
        labels = {label.partition("=")[0].strip(" ~!") for label in selector["labels"].split(",")}
        assert metric is not None and labels <= {*metric.labels, *OF_PROMETHEUS}, selector[0]


def panels() -> list[dict[str, Any]]:
    dashboard: dict[str, Any] = json.loads((DEPLOY / "grafana/penstock.json").read_text())
    return list(dashboard["panels"])


def test_panels_group_by_labels_that_their_metrics_have() -> None:
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len(expressions) > 20
    for expression in expressions:
        for group in GROUPED.finditer(expression):
            metric = metric_of(NAME.findall(group["rest"])[0])
            labels = {label.strip() for label in group["labels"].split(",")}
            assert metric is not None and labels <= {*metric.labels, *OF_PROMETHEUS}, expression


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in panels()]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_every_alert_is_raised_by_a_test_of_its_rule_or_shown_to_stay_quiet() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())["groups"][0]["rules"]
    tests = yaml.safe_load((DEPLOY / "prometheus/rules-test.yaml").read_text())["tests"]
    tested = {case["alertname"] for test in tests for case in test["alert_rule_test"]}
    assert {rule["alert"] for rule in rules if "alert" in rule} == tested
