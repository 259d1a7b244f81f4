"""The Java libraries of Delta, of the embedded broker and of what benchmarks compare with: fetched once, then kept.

`python -m penstock.spark.jars [SET ...]` fetches the named sets, or those that every user needs.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Literal, assert_never

import msgspec

from penstock.errors import PenstockError, TransientError, UserError
from penstock.spark import ivy
from penstock.spark.file_lock import exclusive
from penstock.spark.ivy import Coordinate, Request

ATTEMPTS_MAX = 6
PAUSE_SECONDS_FIRST = 2.0
LOCK_SECONDS_MAX = 3600.0
MANIFEST_NAME = "manifest.json"

SCALA = "2.13"
KAFKA_REVISION = "4.1.2"
LOG4J_REVISION = "2.25.3"
HADOOP_REVISION = "3.4.1"
DELTA_REVISIONS: Mapping[str, str] = {"4.0": "4.0.0"}


class JarSet(StrEnum):
    """A purpose, and with it the jars that it needs beside those that Spark ships."""

    KAFKA_SOURCE = "kafka-source"
    DELTA = "delta"
    BROKER = "broker"
    HDFS = "hdfs"


SETS_FOR_EVERYONE = (JarSet.DELTA, JarSet.BROKER)

Fetch = Callable[[Request, Path], None]
"""One attempt to put all jars of a request into a folder that is there and empty."""


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

    def ivy_jar(self) -> Path:
        """The Ivy that comes with Spark."""
        found = sorted(self.jars_folder.glob("ivy-*.jar"))
        if not found:
            raise UserError(
                "Spark's own Ivy was not found", detail=f"no ivy-*.jar in {self.jars_folder}", hint="run `make setup`"
            )
        return found[-1]

    def modules(self) -> tuple[str, ...]:
        """The module names of the jars that Spark ships."""
        return tuple(sorted({_module_name(path.name) for path in self.jars_folder.glob("*.jar")}))


def home() -> Path:
    """The folder of jars and of the embedded broker: `$PENSTOCK_HOME`, else `~/.cache/penstock`."""
    chosen = os.environ.get("PENSTOCK_HOME")
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".cache" / "penstock"


def resolve(jar_set: JarSet, cache: Path | None = None) -> tuple[Path, ...]:
    """The jars of a set: at once if they are here, else fetched with a bounded number of attempts."""
    root = cache or home() / "jars"
    spark = Spark.installed()

    def fetch(request: Request, target: Path) -> None:
        ivy.fetch(request, ivy_jar=spark.ivy_jar(), work_folder=root / "ivy", target=target)

    return resolve_with(request_for(jar_set, spark), root, fetch)


def resolve_with(
    request: Request, root: Path, fetch: Fetch, *, pause: Callable[[float], None] = time.sleep
) -> tuple[Path, ...]:
    """The jars of a request below `root`, fetched by `fetch` unless a whole set is there already."""
    folder = root / f"{request.name}-{request.coordinates[0].revision}"
    kept = _read_complete(folder, request)
    if kept is not None:
        return kept
    with exclusive(root / ".lock", wait_seconds_max=LOCK_SECONDS_MAX):
        kept = _read_complete(folder, request)
        return kept if kept is not None else _fetch_all(request, folder, fetch, pause)


def request_for(jar_set: JarSet, spark: Spark) -> Request:
    """What a set consists of for this Spark; the Spark sets leave out what Spark ships."""
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
            return Request(jar_set, (broker, binding, tools), ())
        case JarSet.HDFS:
            modules = ("hadoop-client-api", "hadoop-client-runtime", "hadoop-client-minicluster")
            hadoop = tuple(Coordinate("org.apache.hadoop", module, HADOOP_REVISION) for module in modules)
            logging = (
                Coordinate("org.slf4j", "slf4j-api", "1.7.36"),
                Coordinate("commons-logging", "commons-logging", "1.2"),
            )
            return Request(jar_set, (*hadoop, *logging), ())
        case _:
            assert_never(jar_set)


def _delta_revision(spark_version: str) -> str:
    line = ".".join(spark_version.split(".")[:2])
    if line not in DELTA_REVISIONS:
        known = ", ".join(f"{spark}.x" for spark in DELTA_REVISIONS)
        raise UserError(
            f"no Delta release is known for Spark {spark_version}",
            detail=f"known are Spark {known}",
            hint="install a pyspark of a known line",
        )
    return DELTA_REVISIONS[line]


def _fetch_all(request: Request, folder: Path, fetch: Fetch, pause: Callable[[float], None]) -> tuple[Path, ...]:
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
    sizes = {jar.name: jar.stat().st_size for jar in sorted(arriving.glob("*.jar"))}
    if not sizes:
        raise TransientError(f"nothing was fetched for {request.name}", detail=f"{arriving} holds no jar")
    manifest = _Manifest(1, [str(each) for each in request.coordinates], sizes)
    (arriving / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest))
    shutil.rmtree(folder, ignore_errors=True)
    arriving.rename(folder)
    _say(f"jars: {request.name} is here, {len(sizes)} jars in {folder}")
    return tuple(folder / name for name in sizes)


class _Manifest(msgspec.Struct):
    """Of a whole set: its jars with their sizes."""

    version: Literal[1]
    coordinates: list[str]
    jars: dict[str, int]


def _read_complete(folder: Path, request: Request) -> tuple[Path, ...] | None:
    """The jars that the manifest lists if it fits the request and every file has its size, else None."""
    try:
        found = msgspec.json.decode((folder / MANIFEST_NAME).read_bytes(), type=_Manifest)
        whole = all((folder / name).stat().st_size == size for name, size in found.jars.items())
    except (OSError, ValueError):
        return None
    fits = whole and found.jars and found.coordinates == [str(each) for each in request.coordinates]
    return tuple(folder / name for name in sorted(found.jars)) if fits else None


def _module_name(jar_name: str) -> str:
    """The part of `name-1.2.3-classifier.jar` before its version."""
    return re.split(r"-(?=\d[^-]*\.)", jar_name.removesuffix(".jar"))[0]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetches the named sets; the exit code follows the error's branch."""
    parser = argparse.ArgumentParser("python -m penstock.spark.jars", description="Fetch the Java libraries.")
    parser.add_argument("sets", nargs="*", type=JarSet, metavar="SET", help=", ".join(JarSet))
    chosen = parser.parse_args(arguments).sets or SETS_FOR_EVERYONE
    try:
        for jar_set in chosen:
            resolve(jar_set)
    except PenstockError as error:
        _say(str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
