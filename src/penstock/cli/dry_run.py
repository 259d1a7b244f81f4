"""`penstock run --dry-run`: what the next records of jobs would become, as text of 80 columns or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from json import dumps
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from penstock.cli.tables import as_json, table
from penstock.engine.dry_run import DryRun, dry_run
from penstock.flow.columns.fitting import folded
from penstock.job.expressions import to_text
from penstock.job.schema import job_type_name
from penstock.job.spec import JobSpec
from penstock.reporting.model import shown_path
from penstock.tables.preview import Output

WIDTH = 80
"""Of output that is not a terminal."""
ROWS_SHOWN = 2
PARTITIONS_SHOWN = 20
CELL_CHARACTERS_MAX = 24
SQL = "`sql:` needs Spark: shown are its input and the records that never reach it"


def show_dry_runs(jobs: Sequence[JobSpec], records: int, json: bool) -> None:
    """Print the dry run of each job; exit with the code of the first error at which a run would stop."""
    results = [dry_run(job, records) for job in jobs]
    reports = [_report(job, result) for job, result in zip(jobs, results, strict=True)]
    if json:
        typer.echo(dumps(reports, default=as_json))
    else:
        console = Console(highlight=False)
        console = console if console.is_terminal else Console(highlight=False, width=WIDTH)
        for report in reports:
            for line in _lines(report):
                console.print(line)
    stop = next((result.stop for result in results if result.stop is not None), None)
    if stop is not None:
        raise typer.Exit(stop.exit_code)


def _report(job: JobSpec, result: DryRun) -> dict[str, Any]:
    return {
        "job": job.name,
        "table": shown_path(job),
        "slices": [
            {"partition": str(piece.partition), "from": piece.start, "to": piece.end, "end": end}
            for piece in result.slices
            for end in [result.ends[piece.partition]]
        ],
        "before_sql": job.sql is not None,
        "counts": asdict(result.counts),
        "outputs": [_output(job, output) for output in result.outputs],
        "reasons": [asdict(reason) for reason in result.reasons],
        "quarantine": result.quarantine.drop_columns(["job", "batch", "quarantined_at"]).to_pylist(),
        "stop": None if result.stop is None else str(result.stop),
    }


def _output(job: JobSpec, output: Output) -> dict[str, Any]:
    computed = {folded(name): to_text(expression) for name, expression in job.columns.items()}
    others = {**dict.fromkeys(output.new_columns, "new field"), **output.sources}
    columns = [
        (field.name, job_type_name(field.type), computed.get(folded(field.name)) or others.get(field.name, "record"))
        for field in output.rows.schema
    ]
    return {
        "type": output.name or None,
        "columns": [dict(zip(("name", "type", "from"), column, strict=True)) for column in columns],
        "new_columns": output.new_columns,
        "rows": output.rows.to_pylist(),
        "partitions": [
            {"partition": name, "rows": rows, "files": files} for name, (rows, files) in output.partitions.items()
        ],
        "notes": output.notes,
    }


def _lines(report: dict[str, Any]) -> Iterator[RenderableType]:
    """What is read, what it would become, and what a run would refuse."""
    yield Text.assemble((report["job"], "bold"), f"  {report['table']}  dry run: nothing is written or created")
    if not report["slices"]:
        yield Text("no record waits")
        return
    if report["before_sql"]:
        yield Text(f"! {SQL}", style="yellow")
    yield table(("partition", "from", "to", "end of log"), [_cells(piece.values()) for piece in report["slices"]])
    read, *others = (f"{count} {name}" for name, count in report["counts"].items() if count or name != "skipped")
    yield Text(f"{read.replace('read', 'records read')}: {', '.join(others)}")
    for output in report["outputs"]:
        yield from _output_lines(output)
    if report["reasons"]:
        rows = [(str(item["count"]), Text(f"{item['kind']}\n  {item['example']}")) for item in report["reasons"]]
        yield Text()
        yield table(("quarantined", "reason, and the first record"), rows, left=(1,))
    if report["stop"] is not None:
        yield Text(f"\na run would stop: {report['stop']}", style="red")


def _output_lines(output: dict[str, Any]) -> Iterator[RenderableType]:
    of_type = "" if output["type"] is None else f" of type {output['type']}"
    yield Text(f"\nrows{of_type}: {len(output['rows'])}", style="bold")
    shown = output["rows"][:ROWS_SHOWN]
    if shown:
        headings = ("column", "type", "from", *(f"row {number}" for number in range(1, len(shown) + 1)))
        cells = [_cells((*column.values(), *(row[column["name"]] for row in shown))) for column in output["columns"]]
        yield table(headings, cells, left=range(len(headings)))
        yield Text()
        partitions = [_cells((of["partition"] or "-", of["rows"], of["files"])) for of in output["partitions"]]
        yield table(("partition", "rows", "files"), partitions[:PARTITIONS_SHOWN])
        if len(partitions) > PARTITIONS_SHOWN:
            yield Text(f"and {len(partitions) - PARTITIONS_SHOWN} more partitions")
    yield from (Text(note) for note in output["notes"])


def _cells(values: Iterable[object]) -> list[Text]:
    """Values as in JSON, each on one line; text without quotes."""
    cells = []
    for value in values:
        text = value if isinstance(value, str) else dumps(value, default=as_json, ensure_ascii=False).strip('"')
        text = " ".join(text.split())
        cells.append(Text(text if len(text) <= CELL_CHARACTERS_MAX else f"{text[: CELL_CHARACTERS_MAX - 1]}…"))
    return cells
