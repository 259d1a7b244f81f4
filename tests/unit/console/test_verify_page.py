"""The page of verifications: reports for people, the last results, and the process that makes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock.console.access import Access
from penstock.console.children import Children
from penstock.proof.findings import Check, Unproven, VerifyReport, Violation, ViolationKind
from tests.support.console import console, csrf_of, state_of, watched
from tests.support.waiting import wait_until

URL = "/jobs/orders/verify"
VIOLATION = Violation("orders", 0, 17, ViolationKind.MISSING)
REPORT = VerifyReport(
    7,
    (
        Check("offsets", "1 of 100 offsets is missing <b>", True, violation=VIOLATION),
        Check("values", "", False, unproven=[Unproven("the values", "add --values")], warnings=["late"]),
    ),
    job="orders",
    table="lake/orders",
    deep=True,
)


def test_a_report_names_the_violation_and_what_would_prove_the_rest(tmp_path: Path) -> None:
    with console(tmp_path, watched(tmp_path)) as client:
        assert "Not verified yet" in client.get(URL).text
        content = {"result": REPORT.as_json(), "lines": [], "started_at": 0.0}
        state_of(client).history.note("verify", "orders", "exit code 1", "anna", content)
        page = client.get(URL).text
        assert "orders/0 offset 17: missing" in page
        assert "partition=orders/0&amp;at=17" in page
        assert "missing &lt;b&gt;" in page
        assert "add --values" in page
        assert "<form" not in page


def test_a_verification_shows_its_report_and_the_last_results_stay(tmp_path: Path) -> None:
    job = watched(tmp_path)
    job.path = tmp_path / "job.yaml"
    code = f"print({json.dumps(json.dumps(REPORT.as_json()))})"
    with console(tmp_path, job, access=Access(operate_locally=True)) as client:
        state = state_of(client)
        for number, program in enumerate((code, "import sys; sys.exit('the log is away')")):
            state.children = Children((sys.executable, "-c", program))
            form = {"csrf": csrf_of(client.get(URL).text), "confirmed": "yes", "depth": "values"}
            client.post(f"{URL}/start", data=form)
            wait_until(lambda number=number: len(state.history.notes("verify", "orders")) > number)  # type: ignore[misc]
        child = state.children.of("verify", "orders")
        assert child is not None
        assert child.arguments == ["verify", str(job.path), "--json", "--progress", "--values"]
        page = client.get(URL).text
        assert "failed" in page
        assert "the log is away" in page
        assert "orders/0 offset 17" in client.get(f"{URL}?result=1").text
        activity = client.get("/activity").text
        assert "violated" in activity
        assert "failed with exit code 1" in activity
        assert "started_at" not in activity
        form = {"csrf": csrf_of(page), "confirmed": "yes", "depth": "--all"}
        assert client.post(f"{URL}/start", data=form).status_code == 422
        assert "no verify of orders runs" in client.post(f"{URL}/cancel", data=form).text.lower()
