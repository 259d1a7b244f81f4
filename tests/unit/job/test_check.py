from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.check import check
from penstock.job.faults import JobFileError
from penstock.tables.registry import load_jobs
from tests.unit.job.conftest import BASE

app = typer.Typer()
app.command()(check)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "web.yaml").write_text(BASE.replace("s3://lake/web", "/x"), encoding="utf-8")
    (tmp_path / "twin.yaml").write_text(BASE.replace("s3://lake/web", "/x/"), encoding="utf-8")
    (tmp_path / "bad.yaml").write_text(BASE.replace("status: int", "status: itn") + "flsh: {}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_check_of_a_valid_file_prints_what_the_job_does() -> None:
    result = CliRunner().invoke(app, ["web.yaml", "web.yaml"])
    assert result.exit_code == 0
    assert result.stdout == "ok web.yaml (job web-requests: topics web_requests -> delta /x)\n"


@pytest.mark.usefixtures("folder")
def test_all_faults_of_all_files_are_printed_and_the_exit_code_is_2() -> None:
    result = CliRunner().invoke(app, ["bad.yaml", "web.yaml", "none.yaml"])
    assert result.exit_code == 2
    assert result.stdout.splitlines() == [
        "bad.yaml:5:70 schema.status: unknown type 'itn'; did you mean int?",
        "bad.yaml:8:1 flsh: unknown key; did you mean flush?",
        "ok web.yaml (job web-requests: topics web_requests -> delta /x)",
        "none.yaml: cannot be read: No such file or directory",
    ]


@pytest.mark.usefixtures("folder")
def test_two_files_of_one_job_and_table_are_a_fault() -> None:
    result = CliRunner().invoke(app, ["web.yaml", "twin.yaml"])
    assert result.exit_code == 2
    assert "twin.yaml:1:1 job: the same job name and table as in web.yaml" in result.stdout


@pytest.mark.usefixtures("folder")
def test_json_lists_every_file_with_its_faults() -> None:
    result = CliRunner().invoke(app, ["--json", "web.yaml", "bad.yaml"])
    assert result.exit_code == 2
    assert json.loads(result.stdout) == [
        {"file": "web.yaml", "ok": True, "faults": []},
        {
            "file": "bad.yaml",
            "ok": False,
            "faults": [
                {
                    "line": 5,
                    "column": 70,
                    "key": "schema.status",
                    "message": "unknown type 'itn'",
                    "hint": "did you mean int?",
                },
                {"line": 8, "column": 1, "key": "flsh", "message": "unknown key", "hint": "did you mean flush?"},
            ],
        },
    ]


def test_loading_several_files_loads_all_or_names_the_faults_of_all(folder: Path) -> None:
    assert [spec.name for spec in load_jobs([folder / "web.yaml"], {})] == ["web-requests"]
    with pytest.raises(JobFileError) as caught:
        load_jobs([folder / "bad.yaml", folder / "web.yaml", folder / "twin.yaml"], {})
    assert [fault.key for fault in caught.value.faults] == ["schema.status", "flsh", "job"]


@pytest.mark.usefixtures("folder")
def test_values_from_references_are_not_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKET", "hunter2")
    text = BASE.replace("s3://lake/web", '"s3://${env:BUCKET}/web"').replace("[web_requests]", '["${env:BUCKET}"]')
    Path("hidden.yaml").write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["hidden.yaml"])
    assert result.stdout == "ok hidden.yaml (job web-requests: topics '******' -> delta '******')\n"
