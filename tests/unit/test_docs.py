"""Pages are correct: job files load, commands parse and are run somewhere, links and anchors exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from benchmarks.__main__ import app as benchmarks
from penstock.cli.app import app
from penstock.tables.registry import load_job
from tests.support.pages import (
    EXAMPLES,
    PAGES,
    ROOT,
    Block,
    anchors,
    blocks,
    inline_commands,
    is_group,
    links,
    parse_command,
    penstock_commands,
    resolve_command,
    shell_commands,
)
from tests.unit.job.descriptors import TEXT, descriptor_set

LANGUAGES = {"", "json", "properties", "python", "sh", "yaml"}
GARMADON = descriptor_set(
    {
        "header.proto": {"Header": {"application_id": TEXT}},
        "event.proto": {"FsEvent": {"action": TEXT}},
        "spark_event.proto": {"TaskEvent": {"stage": TEXT}},
    },
    package="com.criteo.hadoop.garmadon",
)
WORDS_MAX = {
    "README.md": 1100, "ARCHITECTURE.md": 1200, "CONTRIBUTING.md": 700, "CHANGELOG.md": 740, "docs/job-file.md": 2520,
    "docs/keyed.md": 1050, "docs/rollups.md": 1100, "docs/exports.md": 850, "docs/wal.md": 600,
    "docs/claims-library.md": 550, "docs/operations.md": 2050, "docs/metrics.md": 850, "docs/glossary.md": 800,
    "docs/clusters.md": 1020,
}  # fmt: skip
"""Pages that people read from start to end: to add a paragraph, remove another one."""


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_job_file_on_a_page_loads(block: Block, tmp_path: Path) -> None:
    (tmp_path / "garmadon.desc").write_bytes(GARMADON)
    text, completed = block.text, block.noted("completes")
    if completed:
        # A mapping whose keys are texts: `on` would be read as a boolean.
        whole = yaml.load((ROOT / completed).read_text(encoding="utf-8"), yaml.BaseLoader)
        text = yaml.safe_dump({**whole, **yaml.load(block.text, yaml.BaseLoader)})
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    certificates = dict.fromkeys(("KAFKA_CA", "KAFKA_CERTIFICATE", "KAFKA_KEY"), "-----BEGIN")
    load_job(path, {"KAFKA_BROKERS": "kafka-1:9092", **certificates})


def test_fault_on_the_page_of_the_job_file_is_what_check_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, fault = (block.text for block in blocks() if block.page.name == "job-file.md")
    (tmp_path / "web.yaml").write_text(job.replace("allowed_latency", "alowed_latency"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BROKERS", "kafka-1:9092")
    result = CliRunner().invoke(app, ["check", "web.yaml"])
    assert result.stdout == fault


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_commands_on_a_page_are_accepted_by_the_real_parser(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    if (ROOT / block.folder).is_dir():
        monkeypatch.chdir(ROOT / block.folder)
    for arguments in penstock_commands(block.text):
        parse_command(arguments)


def test_commands_on_pages_are_run_with_the_same_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES / "wal")
    run: set[tuple[str, frozenset[str]]] = set()
    shown: set[tuple[str, frozenset[str]]] = set()
    for block in blocks("sh"):
        for arguments in penstock_commands(block.text):
            (run if block.folder else shown).add(parse_command(arguments))
    missing = [
        (name, options) for name, options in shown if not any(name == other and options <= more for other, more in run)
    ]
    assert not missing, "add them to an example, or to a block that is run"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_inline_commands_exist_with_their_options(page: Path) -> None:
    for arguments in inline_commands(page.read_text(encoding="utf-8")):
        command, remaining, names = resolve_command(arguments)
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        stated = {argument.partition("=")[0] for argument in remaining if argument.startswith("-")}
        unknown = stated - options - {"--help"}
        assert not unknown, f"penstock {' '.join(names)} has no option {unknown}"
        assert not is_group(command) or not remaining


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_other_commands_on_a_page_exist(block: Block) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in shell_commands(block.text):
        for target in re.findall(r"^make ([a-z]+)", command):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target}"
        for module in re.findall(r"python -m ([\w.]+)", command):
            assert importlib.util.find_spec(module) is not None
        for path in re.findall(r"\.venv/bin/pytest ([\w/.]+)", command):
            assert (ROOT / path).exists()


def test_benchmarks_that_pages_name_exist() -> None:
    names = {info.name or info.callback.__name__ for info in benchmarks.registered_commands if info.callback}
    for page in PAGES:
        named = set(re.findall(r"python -m benchmarks ([a-z]+)", page.read_text(encoding="utf-8")))
        assert named <= names, page


def test_blocks_are_of_a_language_that_a_test_knows() -> None:
    assert {block.language for block in blocks()} <= LANGUAGES
    loose = [block for block in blocks("python") if not (block.noted("run in") or block.noted("file"))]
    assert not loose, "a python block is run in an example, or is the content of a file"


@pytest.mark.parametrize("block", [block for block in blocks() if block.noted("file")], ids=str)
def test_block_is_the_content_of_its_file(block: Block) -> None:
    assert block.text == (ROOT / block.noted("file")).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_of_a_page_exist(page: Path) -> None:
    broken = []
    for target in links(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked.read_text(encoding="utf-8"))):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/glossary.md"])
def test_source_files_that_a_page_names_exist(name: str) -> None:
    places = (ROOT, ROOT / "src" / "penstock")
    names = re.findall(r"`([\w/.-]+\.(?:py|yaml))`", (ROOT / name).read_text(encoding="utf-8"))
    missing = [path for path in names if not any((place / path).exists() for place in places)]
    assert not missing


def test_architecture_page_names_each_file_once() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    path = text.partition("## The path of a record")[2].partition("## What is stored where")[0]
    names = re.findall(r"`([\w/]+\.py)`", path)
    assert len(names) == len(set(names)) > 30


def test_architecture_page_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = {path.stem for path in (ROOT / "src" / "penstock").iterdir() if not path.name.startswith("_")}
    assert not {name for name in names if not re.search(rf"\b{name}\b", text)}


def test_pages_that_the_source_names_exist() -> None:
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
    for source in sources:
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", source.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{source} names {name}"


def test_every_example_has_records_and_a_short_page() -> None:
    for folder in (path for path in EXAMPLES.iterdir() if path.is_dir()):
        names = {path.name for path in folder.iterdir() if path.is_file()}
        assert {"README.md", "records.jsonl"} <= names
        assert names & {"job.yaml", "bill.py"}
        assert len((folder / "README.md").read_text(encoding="utf-8").splitlines()) <= 20


@pytest.mark.parametrize("name", WORDS_MAX)
def test_page_is_short(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").split()) <= WORDS_MAX[name]
