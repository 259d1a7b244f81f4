"""Fetches Maven artifacts with the Ivy that Spark ships; what has arrived is kept for the next attempt."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from penstock.errors import TransientError
from penstock.spark.java import java_command

ATTEMPT_SECONDS_MAX = 900
CONNECT_MILLISECONDS_MAX = 20_000
READ_MILLISECONDS_MAX = 60_000
OUTPUT_LINES_SHOWN = 15

# A missing descriptor must fail: Ivy would otherwise take the jar alone and forget what it depends on.
_SETTINGS = f"""<ivysettings>
  <settings defaultResolver="public"/>
  <timeout-constraints>
    <timeout-constraint name="bounded" connectionTimeout="{CONNECT_MILLISECONDS_MAX}"
                        readTimeout="{READ_MILLISECONDS_MAX}"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="public" m2compatible="true" useMavenMetadata="false" descriptor="required"
             checksums="sha1" timeoutConstraint="bounded"/>
  </resolvers>
</ivysettings>
"""


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A Maven artifact: `organisation:module:revision`."""

    organisation: str
    module: str
    revision: str
    alone: bool = False
    """Without what it needs: that is at hand, or not used."""

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.revision}"


@dataclass(frozen=True, slots=True)
class Request:
    """What to fetch with all that it needs, without the modules that are at hand already."""

    name: str
    coordinates: tuple[Coordinate, ...]
    excluded_modules: tuple[str, ...]


def fetch(request: Request, *, ivy_jar: Path, work_folder: Path, target: Path) -> None:
    """One attempt to put every jar of the request into `target`; raises TransientError unless all are there."""
    work_folder.mkdir(parents=True, exist_ok=True)
    settings = work_folder / "settings.xml"
    settings.write_text(_SETTINGS, encoding="utf-8")
    descriptor = work_folder / f"{request.name}.xml"
    descriptor.write_text(_descriptor(request), encoding="utf-8")
    output = work_folder / f"{request.name}.log"
    command = [
        str(java_command()),
        f"-Divy.default.ivy.user.dir={work_folder}",
        *("-jar", str(ivy_jar)),
        *("-settings", str(settings), "-cache", str(work_folder / "cache"), "-ivy", str(descriptor)),
        *("-confs", "default", "-types", "jar", "bundle"),
        *("-retrieve", f"{target}/[organisation]_[artifact]-[revision](-[classifier]).[ext]"),
    ]
    _run(command, request, output)


def _run(command: Sequence[str], request: Request, output: Path) -> None:
    with output.open("w", encoding="utf-8") as log:
        try:
            status = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=ATTEMPT_SECONDS_MAX, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    if status == 0:
        return
    reason = f"no end within {ATTEMPT_SECONDS_MAX} s" if status is None else f"exit code {status}"
    raise TransientError(
        f"the jars of {request.name} could not be fetched",
        detail=f"Ivy: {reason}; its last lines:\n{_tail(output)}",
        hint=f"try again: what has arrived is kept; the whole output is in {output}",
    )


def _tail(output: Path) -> str:
    text = output.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip(" \t:")]
    return "\n".join(f"    {line}" for line in lines[-OUTPUT_LINES_SHOWN:])


def _descriptor(request: Request) -> str:
    wanted = [
        f"    <dependency org={quoteattr(c.organisation)} name={quoteattr(c.module)} rev={quoteattr(c.revision)}"
        f' transitive="{str(not c.alone).lower()}" conf="default->default"/>'
        for c in request.coordinates
    ]
    excluded = [f"    <exclude module={quoteattr(module)}/>" for module in request.excluded_modules]
    dependencies = "\n".join([*wanted, *excluded])
    return f"""<ivy-module version="2.0">
  <info organisation="penstock" module={quoteattr(request.name)}/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
