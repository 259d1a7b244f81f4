"""Shell completion: verbs, and the options of a verb although it is imported late."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app


@pytest.mark.parametrize(
    ("line", "offered"), [("penstock cl", "claims"), ("penstock run --o", "--once"), ("penstock claims pa", "pause")]
)
def test_bash_completes_verbs_options_and_subcommands(line: str, offered: str) -> None:
    words = line.split(" ")
    environment = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner().invoke(app, [], env=environment, prog_name="penstock")
    assert result.output.split() == [offered]
