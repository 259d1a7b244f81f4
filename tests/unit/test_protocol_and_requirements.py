"""The protocol and requirements pages match the code: what they name exists, and cited rules are listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.failpoints import STEPS
from penstock.logs.wal.server import STEP as WAL_ANSWER_STEP
from penstock.logs.wal.store import STEPS as WAL_STEPS
from penstock.tables.registry import KINDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROTOCOL = (DOCS / "protocol.md").read_text()
REQUIREMENTS = (DOCS / "requirements.md").read_text()

TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
FILE = re.compile(r"`([\w/.-]+(?:\.py|/))`")
RULE = re.compile(r"^- \*\*([A-Z]\d)\b(.*(?:\n .*)*)", re.MULTILINE)
CITED = re.compile(r"RULES[\s#]+[A-Z]\d(?:(?:,| and| to)[\s#]+[A-Z]\d)*|\(I\d\)")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

REMOVED_RULES = {"M5"}


@pytest.mark.parametrize("page", [PROTOCOL, REQUIREMENTS], ids=["protocol", "requirements"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = TEST.findall(page)
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text())
    ]
    assert not missing


def test_every_requirement_names_files_that_exist_and_a_test_or_benchmark() -> None:
    rows = [line for line in REQUIREMENTS.splitlines() if " | " in line and not line.startswith("requirement | ")]
    assert len(rows) > 90
    proofs = [row.split(" | ")[-1] for row in rows]
    assert not [row for row, proof in zip(rows, proofs, strict=True) if not re.search(r"`(tests|benchmarks)/", proof)]
    files = {file for row in rows for file in FILE.findall(row)}
    assert not [file for file in files if not (ROOT / file).exists() and not (ROOT / "src/penstock" / file).exists()]


def test_every_rule_that_the_code_cites_is_on_the_protocol_page() -> None:
    sources = [file for folder in ("src", "tests", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    citations = [citation for file in sources for citation in CITED.findall(file.read_text())]
    cited = {rule for citation in citations for rule in re.findall(r"[A-Z]\d", citation)}
    assert len(cited) > 30
    assert not cited - {rule for rule, _ in RULE.findall(PROTOCOL)}


def test_every_rule_of_the_protocol_page_names_its_test() -> None:
    rules = dict(RULE.findall(PROTOCOL))
    assert len(rules) == len(RULE.findall(PROTOCOL)) > 40
    untested = {rule for rule, text in rules.items() if not rule.startswith("I") and not TEST.search(text)}
    assert untested == REMOVED_RULES


def test_the_protocol_page_names_every_failpoint() -> None:
    steps = {*STEPS, *WAL_STEPS, WAL_ANSWER_STEP, *(step for kind in KINDS.all() for step in kind.steps)}
    assert not [step for step in sorted(steps) if f"`{step}`" not in PROTOCOL]


def test_links_between_pages_lead_to_files_and_headings_that_exist() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("adr/*.md")]:
        for target, anchor in LINK.findall(page.read_text()):
            if "://" in target:
                continue
            file = (page.parent / target).resolve() if target else page
            if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert not broken


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = HEADING.findall(page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
