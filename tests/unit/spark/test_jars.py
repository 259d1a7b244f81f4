"""Jars are fetched once, whole or not at all, and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import TransientError, UserError
from penstock.spark.jars import (
    ATTEMPTS_MAX,
    DELTA_ARTIFACTS,
    JarRequest,
    JarSet,
    exclusive,
    parse_major,
    request_for,
    resolve_with,
)

REQUEST = JarRequest("pumps", ("org.example:pump:1.2",))


class Registry:
    """Delivers two jars, after a given number of failures; counts how often it is asked."""

    def __init__(self, failures: int = 0) -> None:
        self.failures_left = failures
        self.asked = 0

    def __call__(self, request: JarRequest, target: Path) -> None:
        self.asked += 1
        (target / "pump-1.2.jar").write_bytes(b"pump!")
        if self.failures_left:
            self.failures_left -= 1
            raise TransientError("the registry dropped a file")
        (target / "valve-3.jar").write_bytes(b"valve")


def names(jars: tuple[Path, ...]) -> list[str]:
    return [jar.name for jar in jars]


def no_pause(seconds: float) -> None:
    assert seconds > 0


def test_existing_jars_are_not_fetched_again(tmp_path: Path) -> None:
    registry = Registry()
    first = resolve_with(REQUEST, tmp_path, registry)
    second = resolve_with(REQUEST, tmp_path, registry)
    assert names(first) == ["pump-1.2.jar", "valve-3.jar"]
    assert first == second
    assert registry.asked == 1


def test_a_dropped_download_is_retried(tmp_path: Path) -> None:
    registry = Registry(failures=2)
    jars = resolve_with(REQUEST, tmp_path, registry, pause=no_pause)
    assert names(jars) == ["pump-1.2.jar", "valve-3.jar"]
    assert registry.asked == 3


def test_failed_downloads_end_after_a_bound_and_leave_no_jar(tmp_path: Path) -> None:
    broken = Registry(failures=ATTEMPTS_MAX)
    with pytest.raises(TransientError):
        resolve_with(REQUEST, tmp_path, broken, pause=no_pause)
    assert broken.asked == ATTEMPTS_MAX
    sound = Registry()
    assert len(resolve_with(REQUEST, tmp_path, sound)) == 2
    assert sound.asked == 1


def test_a_registry_that_delivers_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TransientError):
        resolve_with(REQUEST, tmp_path, lambda request, target: None)


def test_two_processes_do_not_fetch_at_the_same_time(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        exclusive(lock, wait_seconds_max=0),
        pytest.raises(TransientError),
        exclusive(lock, wait_seconds_max=0),
    ):
        raise AssertionError("two holders")
    with exclusive(lock, wait_seconds_max=0):
        assert lock.exists()


def spark_with(tmp_path: Path, version: str, *jars: str) -> tuple[str, Path]:
    for jar in jars:
        (tmp_path / jar).touch()
    return version, tmp_path


def test_spark_sets_follow_the_installed_spark_and_leave_out_what_it_ships(tmp_path: Path) -> None:
    spark = spark_with(
        tmp_path, "4.0.0", "spark-sql_2.13-4.0.0.jar", "log4j-1.2-api-2.24.3.jar", "netty-4.1-linux-x86_64.jar"
    )
    source = request_for(JarSet.KAFKA_SOURCE, *spark)
    assert source.coordinates == ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",)
    assert "spark-sql_2.13" in source.excluded_modules
    delta = request_for(JarSet.DELTA, *spark)
    assert delta.coordinates == ("io.delta:delta-spark_2.13:4.0.0",)


def test_each_line_of_spark_has_its_own_delta_in_a_folder_of_its_own(tmp_path: Path) -> None:
    requests = [request_for(JarSet.DELTA, *spark_with(tmp_path, f"{line}.1")) for line in DELTA_ARTIFACTS]
    assert requests[0].coordinates == ("io.delta:delta-spark_2.12:3.3.2",)
    assert len({request.revision for request in requests}) == len(requests) >= 4
    source = request_for(JarSet.KAFKA_SOURCE, *spark_with(tmp_path, "3.5.6"))
    assert source.coordinates == ("org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.6",)


def test_the_broker_needs_nothing_of_spark(tmp_path: Path) -> None:
    broker = request_for(JarSet.BROKER, *spark_with(tmp_path, "4.0.0", "scala-library-2.13.16.jar"))
    assert broker.excluded_modules == ()
    assert broker.coordinates[0].startswith("org.apache.kafka:kafka_2.13:")


def test_a_spark_without_a_known_delta_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        request_for(JarSet.DELTA, *spark_with(tmp_path, "9.9.1"))
    assert "jobs run without it" in raised.value.detail
    assert "4.0" in raised.value.hint


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("command not found", None),
    ],
)
def test_the_version_of_java_is_parsed_from_its_output(text: str, major: int | None) -> None:
    assert parse_major(text) == major
