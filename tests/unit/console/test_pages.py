"""The pages of the console, by a client without JavaScript."""

from __future__ import annotations

from pathlib import Path

from tests.support.console import console, watched


def test_the_overview_has_a_row_per_job_that_leads_to_its_page(tmp_path: Path) -> None:
    with console(tmp_path, watched(tmp_path, "orders"), watched(tmp_path, "clicks")) as client:
        page = client.get("/").text
        assert page.count('<th scope="row"') == 2
        assert client.get("/jobs/clicks").status_code == 200
        assert client.get("/jobs/nothing").status_code == 404
