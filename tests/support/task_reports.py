"""Reports of tasks as the driver gets them."""

from __future__ import annotations

from penstock.flow.write.report import TaskReport, decode_report, report_batch


def sent(report: TaskReport) -> TaskReport:
    """The report after its way through Spark."""
    return decode_report(report_batch(report).column("report")[0].as_py(), TaskReport)
