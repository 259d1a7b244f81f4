"""`python -m benchmarks claims --virtual` counts the records of the protocol."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from benchmarks.__main__ import app


def claims_json(*arguments: str) -> Any:
    """The JSON object that the benchmark prints."""
    done = CliRunner().invoke(app, ["claims", *arguments, "--json"])
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    return json.loads(done.stdout)


def test_the_cost_of_the_protocol_grows_with_the_members_and_not_with_the_partitions_of_others() -> None:
    """Each member writes three records until all partitions are assigned, however many there are."""
    few = claims_json("--members", "10", "--partitions", "50", "--virtual")
    many = claims_json("--members", "20", "--partitions", "400", "--virtual")
    assert few["stable_records"] == 10 * 3 + 1
    assert many["stable_records"] == 20 * 3 + 1
    assert (few["rest_records_per_s"], many["rest_records_per_s"]) == (2.0, 4.0)
