"""Exports and other jobs of one command: jobs that conflict are refused together."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.tables.registry import check_jobs
from tests.unit.job.conftest import BASE
from tests.unit.job.test_export_job import JSON

ROOT = "s3://lake/shop"


def export(name: str = "shop", path: str = ROOT, topics: str = "shop", more: str = "") -> str:
    assert JSON.startswith("job: shop\n")
    text = JSON.replace("job: shop\n", f"job: {name}\n").replace("topics: [shop]", f"topics: [{topics}]")
    return text.replace(f"path: {ROOT}", f"path: {path}{more}")


def delta(path: str, more: str = "") -> str:
    return BASE.replace("path: s3://lake/web", f"path: {path}{more}")


def faults_of(folder: Path, *texts: str) -> list[list[str]]:
    """The keys of the faults of each file."""
    paths = [folder / f"{number}.yaml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return [[fault.key for fault in job.faults] for job in check_jobs(paths, {})]


@pytest.mark.parametrize(
    ("one", "other", "key"),
    [
        (export(), export(), "job"),
        (export(), export(path=f"{ROOT}/"), "job"),
        (export(), export("mall", f"{ROOT}/mall"), "table"),
        (export("mall", f"{ROOT}/mall"), export(), "table"),
        (export(), delta(f"{ROOT}/web"), "table"),
        (delta(f"{ROOT}/web"), export(), "table"),
        (delta(ROOT), export(), "table"),
        (delta("s3://lake/web"), delta("s3://lake/web/more").replace("web-requests", "more"), "table"),
    ],
)
def test_jobs_that_would_write_into_each_others_folders_are_refused(
    tmp_path: Path, one: str, other: str, key: str
) -> None:
    assert faults_of(tmp_path, one, other) == [[], [key]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (export(), export("mall", "s3://lake/mall")),
        (export(), export("mall", topics="mall")),
        (export(), export("mall", f"{ROOT}_mall")),
        (export(more=", cluster: eu"), export("mall", more=", cluster: us")),
        (export(more=", cluster: eu"), export("mall", topics="mall", more=", cluster: eu")),
        (export(topics="shop, mall"), export("street", topics="street, road")),
        (export(), delta("s3://lake/web")),
        (delta("s3://lake/web"), delta("s3://lake/web").replace("web-requests", "more")),
    ],
)
def test_jobs_that_share_no_file_name_may_run_together(tmp_path: Path, one: str, other: str) -> None:
    assert faults_of(tmp_path, one, other) == [[], []]


def test_several_conflicts_name_the_first_and_print_no_secret(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(export(), encoding="utf-8")
    (tmp_path / "b.yaml").write_text(export("mall", "s3://lake/mall"), encoding="utf-8")
    (tmp_path / "c.yaml").write_text(export("web", '"${env:ROOT}"'), encoding="utf-8")
    results = check_jobs([tmp_path / name for name in ("a.yaml", "b.yaml", "c.yaml")], {"ROOT": "s3://lake/shop/x"})
    [fault] = results[-1].faults
    assert (fault.key, "a.yaml" in fault.message, "lake" in fault.message) == ("table", True, False)
