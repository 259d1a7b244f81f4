"""Many processes of one job, killed, stopped and woken: every record once, and no process writes without its claim."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.claims.group import open_group
from penstock.engine.loop import Loop, Retries
from penstock.engine.pulse import Pulse, SparkProgress
from penstock.engine.round import open_rounds
from penstock.environment import Environment
from penstock.errors import UserError
from penstock.job.spec import kafka_of
from penstock.tables.registry import load_job
from tests.support.jobs import KILLED, assert_every_record_once, holds, numbered, shared_job
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Recorder, run_in_process
from tests.support.processes import command_json, penstock

ALL_SECONDS_MAX = 300.0


def mirror_lagging(job: Path) -> bool:
    return any(item["kind"] == "mirror_lagging" for item in command_json("status", str(job))[0]["alerts"])


def test_c5_a_process_that_sleeps_before_its_commit_past_its_lease_is_fenced_and_goes_on_as_a_member(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(partitions=2)
    one, other = (shared_job(tmp_path, bootstrap, name, client_id=text) for text in ("one", "other"))
    places = produce(name, numbered(range(300)))
    # Commits of the sleeper: the start of both partitions, then the batch, checked and not yet made.
    with penstock("run", str(one), "--json", failpoint="checked:stop:2") as sleeper:
        sleeper.wait_stopped()
        assert run_in_process(other, spark).named("claim won")
        sleeper.send(signal.SIGCONT)
        refused = sleeper.wait_for("slice refused")
        assert "older than the table" in refused["reason"]
        places += produce(name, numbered(range(300, 400)))
        sleeper.wait_for("batch committed")
        sleeper.send(signal.SIGTERM)
        assert sleeper.exit_code() == 0
    assert_every_record_once(tmp_path / "table", places)
    assert command_json("verify", str(one))["ok"]


def test_a_loop_that_hangs_before_its_commit_loses_its_partitions_and_is_fenced_when_it_wakes(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    """The engine's own loop, in a thread: its agent is well, and would renew the claims for ever."""
    name, recorder = topic(partitions=1), Recorder()
    one, other = (shared_job(tmp_path, bootstrap, name, client_id=text, heartbeat="1s") for text in ("one", "other"))
    spec = load_job(one)
    assert spec.claims is not None
    # Shorter than a job file allows: Spark is warm, and the batch small.
    claims = open_group(kafka_of(spec), replace(spec.claims, work_timeout_seconds=5.0), recorder.event)
    steps, hangs, wakes = list[str](), threading.Event(), threading.Event()

    def at_step(step: str) -> None:
        steps.append(step)
        if step == "checked" and "staged" in steps and not hangs.is_set():
            hangs.set()
            assert wakes.wait(ALL_SECONDS_MAX)

    progress = SparkProgress(spec.name)
    rounds = lambda: open_rounds(spec, progress.follow(spark), Environment(at_step=at_step, listener=recorder), claims)  # noqa: E731
    loop = Loop(rounds, True, threading.Event(), Retries(10), recorder, claims.working)
    places = produce(name, numbered(range(300)))
    thread = threading.Thread(target=loop.run, daemon=True)
    with Pulse(progress, claims.working, check_seconds=0.5):
        thread.start()
        assert hangs.wait(ALL_SECONDS_MAX)
        assert run_in_process(other, spark).named("claim won")
        assert recorder.named("work hangs")
        wakes.set()
        thread.join(ALL_SECONDS_MAX)
    claims.close()
    assert not thread.is_alive()
    refused = [item["reason"] for item in recorder.named("slice refused")]
    assert refused and all("older than the table" in reason for reason in refused)
    assert_every_record_once(tmp_path / "table", places)
    assert command_json("verify", str(one))["ok"]


def test_m4_a_paused_group_stops_cleanly_writes_nothing_and_goes_on_when_it_is_resumed(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=2)
    job = shared_job(tmp_path, bootstrap, name, client_id="one")
    places = produce(name, numbered(range(100)))
    with penstock("run", str(job), "--json") as process:
        process.wait_for("batch committed")
        assert {claim["owner"] for claim in command_json("claims", "list", "--job", str(job))["claims"]} == {"one"}
        paused = command_json("claims", "pause", "--job", str(job), "--reason", "maintenance")
        assert paused["holders"] == []
        assert process.wait_for("claim released")["reason"] == "the group is paused"
        before = holds(tmp_path / "table")
        places += produce(name, numbered(range(100, 200)))
        assert not process.ended(3.0)
        assert holds(tmp_path / "table") == before
        command_json("claims", "resume", "--job", str(job))
        process.wait_for("batch committed")
        process.send(signal.SIGTERM)
        assert process.exit_code() == 0
    assert_every_record_once(tmp_path / "table", places)


def test_m3_a_second_live_process_with_the_same_client_id_is_refused_and_a_restarted_one_is_not(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(partitions=1)
    job = shared_job(tmp_path, bootstrap, name, client_id="same")
    places = produce(name, numbered(range(100)))
    with penstock("run", str(job), "--json") as first:
        first.wait_for("batch committed")
        with penstock("run", str(job), "--json") as second:
            assert second.exit_code() == UserError.exit_code
            assert "same" in second.errors
        places += produce(name, numbered(range(100, 200)))
        first.wait_for("batch committed")
        first.send(signal.SIGKILL)
        assert first.exit_code() == KILLED
    places += produce(name, numbered(range(200, 300)))
    # The first may have had to claim more than once, on a machine that is too busy for its heartbeats.
    before = [event["token"] for event in first.events_read if event["event"] == "claim won"]
    assert run_in_process(job, spark).named("claim won")[0]["token"] == before[-1] + 1
    assert_every_record_once(tmp_path / "table", places)
