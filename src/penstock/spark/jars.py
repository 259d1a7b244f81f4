"""The Java libraries of Delta, of the embedded broker and of what benchmarks compare with: fetched once, then kept.

They are fetched with the Ivy that Spark ships. `python -m penstock.spark.jars [SET ...]` fetches the named sets, or
those that every user needs.
"""

from __future__ import annotations

import fcntl
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import assert_never
from xml.sax.saxutils import quoteattr

from penstock.errors import TransientError, UserError

ATTEMPTS_MAX = 6
ATTEMPT_SECONDS_MAX = 900
PAUSE_SECONDS_FIRST = 2.0
LOCK_SECONDS_MAX = 3600.0
LOCK_POLL_SECONDS = 0.2
OUTPUT_CHARACTERS_SHOWN = 1500
JAVA_MAJOR_MIN = 17

SCALA = "2.13"
KAFKA_REVISION = "4.1.2"
LOG4J_REVISION = "2.25.3"
HADOOP_REVISION = "3.4.1"
DELTA_REVISIONS: Mapping[str, str] = {"4.0": "4.0.0"}

_JAVA_HINT = f"install a Java runtime of version {JAVA_MAJOR_MIN} or later and put it on PATH, or set JAVA_HOME to it"
# A missing descriptor must fail: Ivy would otherwise take the jar alone and forget what it depends on.
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="public"/>
  <timeout-constraints>
    <timeout-constraint name="bounded" connectionTimeout="20000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="public" m2compatible="true" useMavenMetadata="false" descriptor="required"
             checksums="sha1" timeoutConstraint="bounded"/>
  </resolvers>
</ivysettings>
"""
_IVY_MODULE = """<ivy-module version="2.0">
  <info organisation="penstock" module={name}/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


class JarSet(StrEnum):
    """A purpose, and with it the jars that it needs beside those that Spark ships."""

    KAFKA_SOURCE = "kafka-source"
    DELTA = "delta"
    BROKER = "broker"
    HDFS = "hdfs"


SETS_FOR_EVERYONE = (JarSet.DELTA, JarSet.BROKER)


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A Maven artifact: `organisation:module:revision`."""

    organisation: str
    module: str
    revision: str
    alone: bool = False
    """Without its dependencies: they are present, or not used."""

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.revision}"


@dataclass(frozen=True, slots=True)
class Request:
    """Artifacts to fetch with their dependencies, without the modules that are present already."""

    name: str
    coordinates: tuple[Coordinate, ...]
    excluded_modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spark:
    """The installed Spark: its version and the jars that it brings along."""

    version: str
    jars_folder: Path

    @classmethod
    def installed(cls) -> Spark:
        """The pyspark of this interpreter."""
        distribution = metadata.distribution("pyspark")
        return cls(distribution.version, Path(str(distribution.locate_file("pyspark"))) / "jars")

    def modules(self) -> tuple[str, ...]:
        """The module names of the jars that Spark ships: of `name-1.2.3.jar` the part before the version."""
        names = (path.name.removesuffix(".jar") for path in self.jars_folder.glob("*.jar"))
        return tuple(sorted({re.split(r"-(?=\d[^-]*\.)", name)[0] for name in names}))


def home() -> Path:
    """The folder of jars and of the embedded broker: `$PENSTOCK_HOME`, else `~/.cache/penstock`."""
    chosen = os.environ.get("PENSTOCK_HOME")
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".cache" / "penstock"


def java_command() -> Path:
    """The `java` of JAVA_HOME, else of PATH, once its version is known to be enough."""
    java_home = os.environ.get("JAVA_HOME")
    command = str(Path(java_home) / "bin" / "java") if java_home else shutil.which("java")
    try:
        answer = subprocess.run(
            [command or "java", "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        detail = f"{command or 'neither JAVA_HOME nor PATH leads to it'}: {error}"
        raise UserError("Java does not run", detail=detail, hint=_JAVA_HINT) from error
    text = answer.stderr + answer.stdout
    major = parse_major(text)
    if major is None or major < JAVA_MAJOR_MIN:
        detail = f"{command} said: {text.strip()}"
        raise UserError(f"Java {JAVA_MAJOR_MIN} or later is needed", detail=detail, hint=_JAVA_HINT)
    return Path(str(command))


def parse_major(version_text: str) -> int | None:
    """The major version in what `java -version` printed; `1.8` counts as 8."""
    version = re.search(r'version "(?:1\.)?(\d+)', version_text)
    return None if version is None else int(version[1])


def resolve(jar_set: JarSet) -> tuple[Path, ...]:
    """The jars of a set: at once if they are here, else fetched with a bounded number of attempts."""
    root = home() / "jars"
    spark = Spark.installed()

    def fetch(request: Request, target: Path) -> None:
        _fetch_with_ivy(request, spark, root / "ivy", target)

    return resolve_with(request_for(jar_set, spark), root, fetch)


def resolve_with(
    request: Request,
    root: Path,
    fetch: Callable[[Request, Path], None],
    *,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[Path, ...]:
    """The jars of a request below `root`. Their folder appears with all of them, or not at all."""
    folder = root / f"{request.name}-{request.coordinates[0].revision}"
    if not folder.exists():
        with exclusive(root / ".lock", wait_seconds_max=LOCK_SECONDS_MAX):
            if not folder.exists():
                _fetch_all(request, folder, fetch, pause)
    return tuple(sorted(folder.glob("*.jar")))


@contextmanager
def exclusive(path: Path, *, wait_seconds_max: float) -> Iterator[None]:
    """Hold a lock file, which the operating system releases when its holder dies; `TransientError` after the wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_seconds_max
    with path.open("w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    waited = f"waited {wait_seconds_max:g} s"
                    raise TransientError(f"{path} is locked by another process", detail=waited) from None
            time.sleep(LOCK_POLL_SECONDS)
        yield


def _fetch_all(
    request: Request, folder: Path, fetch: Callable[[Request, Path], None], pause: Callable[[float], None]
) -> None:
    arriving = folder.with_name(f".{folder.name}.arriving")
    for attempt in range(1, ATTEMPTS_MAX + 1):
        shutil.rmtree(arriving, ignore_errors=True)
        arriving.mkdir(parents=True)
        _say(f"jars: fetching {request.name} (attempt {attempt} of {ATTEMPTS_MAX}); the first time takes minutes")
        try:
            fetch(request, arriving)
            break
        except TransientError as error:
            if attempt == ATTEMPTS_MAX:
                raise
            _say(f"jars: {error.primary}; trying again")
            pause(PAUSE_SECONDS_FIRST * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))
    if not any(arriving.glob("*.jar")):
        raise TransientError(f"nothing was fetched for {request.name}", detail=f"{arriving} holds no jar")
    arriving.rename(folder)


def _fetch_with_ivy(request: Request, spark: Spark, work_folder: Path, target: Path) -> None:
    """One attempt to put every jar of the request into `target`; what has arrived is kept for the next one."""
    ivy_jar = next(spark.jars_folder.glob("ivy-*.jar"), None)
    if ivy_jar is None:
        raise UserError("Spark's own Ivy was not found", detail=f"no ivy-*.jar in {spark.jars_folder}")
    work_folder.mkdir(parents=True, exist_ok=True)
    settings, descriptor = work_folder / "settings.xml", work_folder / f"{request.name}.xml"
    settings.write_text(_IVY_SETTINGS, encoding="utf-8")
    descriptor.write_text(_ivy_module(request), encoding="utf-8")
    output = work_folder / f"{request.name}.log"
    command = [
        str(java_command()),
        f"-Divy.default.ivy.user.dir={work_folder}",
        *("-jar", str(ivy_jar)),
        *("-settings", str(settings), "-cache", str(work_folder / "cache"), "-ivy", str(descriptor)),
        *("-confs", "default", "-types", "jar", "bundle"),
        *("-retrieve", f"{target}/[organisation]_[artifact]-[revision](-[classifier]).[ext]"),
    ]
    try:
        with output.open("w", encoding="utf-8") as log:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=ATTEMPT_SECONDS_MAX, check=True
            )
    except subprocess.SubprocessError as error:
        last_lines = output.read_text(encoding="utf-8", errors="replace")[-OUTPUT_CHARACTERS_SHOWN:]
        raise TransientError(
            f"the jars of {request.name} could not be fetched",
            detail=f"Ivy: {error}; its last lines:\n{last_lines}",
            hint=f"try again: what has arrived is kept; the whole output is in {output}",
        ) from error


def _ivy_module(request: Request) -> str:
    lines = [
        f"    <dependency org={quoteattr(c.organisation)} name={quoteattr(c.module)} rev={quoteattr(c.revision)}"
        f' transitive="{str(not c.alone).lower()}" conf="default->default"/>'
        for c in request.coordinates
    ]
    lines += [f"    <exclude module={quoteattr(module)}/>" for module in request.excluded_modules]
    return _IVY_MODULE.format(name=quoteattr(request.name), dependencies="\n".join(lines))


def request_for(jar_set: JarSet, spark: Spark) -> Request:
    """The artifacts of a set for this Spark; the Spark sets leave out what Spark ships."""
    match jar_set:
        case JarSet.KAFKA_SOURCE:
            source = Coordinate("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", spark.version)
            return Request(jar_set, (source,), spark.modules())
        case JarSet.DELTA:
            delta = Coordinate("io.delta", f"delta-spark_{SCALA}", _delta_revision(spark.version))
            return Request(jar_set, (delta,), spark.modules())
        case JarSet.BROKER:
            broker = Coordinate("org.apache.kafka", f"kafka_{SCALA}", KAFKA_REVISION)
            # Without a binding Kafka would log nowhere.
            binding = Coordinate("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_REVISION)
            # Kafka's own command line, such as kafka-consumer-groups; with all it names the set would double.
            tools = Coordinate("org.apache.kafka", "kafka-tools", KAFKA_REVISION, alone=True)
            return Request(jar_set, (broker, binding, tools))
        case JarSet.HDFS:
            modules = ("hadoop-client-api", "hadoop-client-runtime", "hadoop-client-minicluster")
            hadoop = tuple(Coordinate("org.apache.hadoop", module, HADOOP_REVISION) for module in modules)
            slf4j = Coordinate("org.slf4j", "slf4j-api", "1.7.36")
            return Request(jar_set, (*hadoop, slf4j, Coordinate("commons-logging", "commons-logging", "1.2")))
        case _:
            assert_never(jar_set)


def _delta_revision(spark_version: str) -> str:
    line = ".".join(spark_version.split(".")[:2])
    if line not in DELTA_REVISIONS:
        raise UserError(
            f"no Delta release is known for Spark {spark_version}",
            hint=f"install a pyspark of one of these lines: {', '.join(DELTA_REVISIONS)}",
        )
    return DELTA_REVISIONS[line]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or SETS_FOR_EVERYONE:
        resolve(JarSet(name))
