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
DELTA_ARTIFACTS: Mapping[str, str] = {
    "3.5": "delta-spark_2.12:3.3.2",
    "4.0": "delta-spark_2.13:4.0.0",
    "4.1": "delta-spark_4.1_2.13:4.3.1",
    "4.2": "delta-spark_4.2_2.13:4.4.0",
}
"""By line of Spark; folders of jars are named by the revision, so each line has another one."""

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
    """A purpose, with the jars that it needs in addition to those that Spark ships."""

    KAFKA_SOURCE = "kafka-source"
    DELTA = "delta"
    BROKER = "broker"
    HDFS = "hdfs"


SETS_FOR_EVERYONE = (JarSet.DELTA, JarSet.BROKER)


@dataclass(frozen=True, slots=True)
class JarRequest:
    """Maven artifacts, `organisation:module:revision`, to fetch with their dependencies."""

    name: str
    coordinates: tuple[str, ...]
    alone: tuple[str, ...] = ()
    """Artifacts to fetch without their dependencies: those are present, or not used."""
    excluded_modules: tuple[str, ...] = ()
    """Modules that are present already."""

    @property
    def revision(self) -> str:
        return self.coordinates[0].rpartition(":")[2]


def installed_spark() -> tuple[str, Path]:
    """The version of the installed Spark, and the folder of the jars that it ships."""
    distribution = metadata.distribution("pyspark")
    return distribution.version, Path(str(distribution.locate_file("pyspark"))) / "jars"


def home() -> Path:
    """The folder of jars, logs and the embedded broker: `$PENSTOCK_HOME`.

    By default it is `.penstock` in the project that this file belongs to, and `~/.cache/penstock` if it was installed.
    """
    chosen, project = os.environ.get("PENSTOCK_HOME"), Path(__file__).parents[3]
    if chosen:
        return Path(chosen).expanduser().absolute()
    return project / ".penstock" if (project / "pyproject.toml").is_file() else _cache()


def _cache() -> Path:
    return Path.home() / ".cache" / "penstock"


def java_command() -> Path:
    """The `java` of JAVA_HOME, else of PATH, of a sufficient version."""
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
        detail = f"{command} -version printed: {text.strip()}"
        raise UserError(f"Java {JAVA_MAJOR_MIN} or later is needed", detail=detail, hint=_JAVA_HINT)
    return Path(str(command))


def parse_major(version_text: str) -> int | None:
    """The major version in what `java -version` printed; `1.8` counts as 8."""
    version = re.search(r'version "(?:1\.)?(\d+)', version_text)
    return None if version is None else int(version[1])


def resolve(jar_set: JarSet) -> tuple[Path, ...]:
    """The jars of a set: at once if they are present, else fetched with a bounded number of attempts."""
    root = home() / "jars"
    version, shipped = installed_spark()

    def fetch(request: JarRequest, target: Path) -> None:
        # Downloads are shared by all projects of a user.
        _fetch_with_ivy(request, shipped, _cache() / "ivy", target)

    return resolve_with(request_for(jar_set, version, shipped), root, fetch)


def resolve_with(
    request: JarRequest,
    root: Path,
    fetch: Callable[[JarRequest, Path], None],
    *,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[Path, ...]:
    """The jars of a request below `root`. Their folder appears with all of them, or not at all."""
    folder = root / f"{request.name}-{request.revision}"
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
    request: JarRequest, folder: Path, fetch: Callable[[JarRequest, Path], None], pause: Callable[[float], None]
) -> None:
    arriving = folder.with_name(f".{folder.name}.arriving")
    for attempt in range(1, ATTEMPTS_MAX + 1):
        shutil.rmtree(arriving, ignore_errors=True)
        arriving.mkdir(parents=True)
        text = f"fetching the jars of {request.name} into {folder.parent}, once; attempt {attempt} of {ATTEMPTS_MAX}"
        print(text, file=sys.stderr, flush=True)
        try:
            fetch(request, arriving)
            break
        except TransientError as error:
            if attempt == ATTEMPTS_MAX:
                raise
            print(f"{error.primary}; trying again", file=sys.stderr, flush=True)
            pause(PAUSE_SECONDS_FIRST * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))
    if not any(arriving.glob("*.jar")):
        raise TransientError(f"nothing was fetched for {request.name}", detail=f"{arriving} holds no jar")
    arriving.rename(folder)


def _fetch_with_ivy(request: JarRequest, shipped: Path, work_folder: Path, target: Path) -> None:
    """One attempt to put every jar of the request into `target`; what arrived is kept for the next one."""
    ivy_jar = next(shipped.glob("ivy-*.jar"), None)
    if ivy_jar is None:
        raise UserError("the Ivy that Spark ships is missing", detail=f"no ivy-*.jar in {shipped}")
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


def _ivy_module(request: JarRequest) -> str:
    lines = []
    for coordinate in (*request.coordinates, *request.alone):
        organisation, module, revision = map(quoteattr, coordinate.split(":"))
        transitive = "false" if coordinate in request.alone else "true"
        lines.append(
            f'    <dependency org={organisation} name={module} rev={revision} transitive="{transitive}"'
            ' conf="default->default"/>'
        )
    lines += [f"    <exclude module={quoteattr(module)}/>" for module in request.excluded_modules]
    return _IVY_MODULE.format(name=quoteattr(request.name), dependencies="\n".join(lines))


def request_for(jar_set: JarSet, spark_version: str, shipped: Path) -> JarRequest:
    """The artifacts of a set for this Spark; sets for Spark leave out what it ships."""
    names = (path.name.removesuffix(".jar") for path in shipped.glob("*.jar"))
    # Of `name-1.2.3.jar` the part before the version.
    modules = tuple(sorted({re.split(r"-(?=\d[^-]*\.)", name)[0] for name in names}))
    match jar_set:
        case JarSet.KAFKA_SOURCE:
            scala = "2.12" if spark_version.startswith("3.") else SCALA
            source = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark_version}"
            return JarRequest(jar_set, (source,), excluded_modules=modules)
        case JarSet.DELTA:
            return JarRequest(jar_set, (delta_coordinate(spark_version),), excluded_modules=modules)
        case JarSet.BROKER:
            # Without the binding Kafka would log nowhere.
            binding = f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_REVISION}"
            # Kafka's own command line, such as kafka-consumer-groups; its dependencies would double the set.
            tools = f"org.apache.kafka:kafka-tools:{KAFKA_REVISION}"
            return JarRequest(jar_set, (f"org.apache.kafka:kafka_{SCALA}:{KAFKA_REVISION}", binding), alone=(tools,))
        case JarSet.HDFS:
            clients = ("hadoop-client-api", "hadoop-client-runtime", "hadoop-client-minicluster")
            hadoop = tuple(f"org.apache.hadoop:{module}:{HADOOP_REVISION}" for module in clients)
            return JarRequest(jar_set, (*hadoop, "org.slf4j:slf4j-api:1.7.36", "commons-logging:commons-logging:1.2"))
        case _:
            assert_never(jar_set)


def delta_coordinate(spark_version: str) -> str:
    """The Delta release that belongs to this Spark; only a Spark session that reads tables itself needs it."""
    line = ".".join(spark_version.split(".")[:2])
    if line not in DELTA_ARTIFACTS:
        raise UserError(
            f"there is no Delta release for Spark {spark_version}",
            detail="jobs run without it; a Spark session cannot read their tables",
            hint=f"to read tables with Spark, install a pyspark of one of these lines: {', '.join(DELTA_ARTIFACTS)}",
        )
    return f"io.delta:{DELTA_ARTIFACTS[line]}"


def sets_to_read_tables() -> tuple[JarSet, ...]:
    """What a session needs that may read tables later, if there is such a set for the installed Spark."""
    line = ".".join(installed_spark()[0].split(".")[:2])
    return (JarSet.DELTA,) if line in DELTA_ARTIFACTS else ()


if __name__ == "__main__":
    for name in sys.argv[1:] or SETS_FOR_EVERYONE:
        resolve(JarSet(name))
