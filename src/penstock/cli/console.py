"""`penstock console`: web pages that show jobs."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import UserError
from penstock.serving import host_and_port, read_tokens

DEFAULT_LISTEN = "127.0.0.1:7080"


def console(
    jobs: Annotated[list[Path] | None, typer.Argument(help="Job files; by default those of this folder.")] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="The address to serve.")] = DEFAULT_LISTEN,
    token_file: Annotated[Path | None, typer.Option(help="Tokens for reading, NAME:TOKEN per line.")] = None,
    operate_token_file: Annotated[Path | None, typer.Option(help="Tokens for acting, NAME:TOKEN per line.")] = None,
    operate: Annotated[bool, typer.Option("--operate", help="Everybody on this computer may act.")] = False,
    tls_certificate: Annotated[Path | None, typer.Option(help="A PEM file: serve HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate.")] = None,
    history: Annotated[Path | None, typer.Option(help="Where to keep a week of history.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Serve web pages that show lag, commits and quarantine of jobs; they change nothing unless allowed to."""
    from penstock.console.access import Access  # noqa: PLC0415 - needs packages of the extra `console`
    from penstock.console.server import opened  # noqa: PLC0415
    from penstock.console.state import job_files, watched_files  # noqa: PLC0415

    host, port = host_and_port("--listen", listen)
    if (tls_certificate is None) != (tls_key is None):
        raise UserError("--tls-certificate and --tls-key need each other", hint="give both or neither")
    certificate = None if tls_certificate is None else (str(tls_certificate), str(tls_key))
    access = Access(
        host,
        port,
        read_tokens=_owners("--token-file", token_file),
        operate_tokens=_owners("--operate-token-file", operate_token_file),
        operate_locally=operate,
        tls=certificate is not None,
    )
    files = jobs or job_files(Path())
    if not files:
        raise UserError("this folder has no job files", hint="name job files: penstock console JOB...")
    with opened(watched_files(files), access, certificate, history) as served:
        facts = {"url": served.url, "jobs": len(files)}
        typer.echo(json_text.dumps(facts) if json else f"serving {len(files)} jobs at {served.url}")
        served.run()


def _owners(option: str, path: Path | None) -> dict[str, str]:
    """The tokens of a file with the names of their owners."""
    parts = [line.rpartition(":") for line in (read_tokens(option, path) if path else ())]
    return {token: name or "token" for name, _, token in parts}
