"""How the output of a bucket is opened; a test puts another one in its place."""

from __future__ import annotations

from collections.abc import Callable

from penstock.environment import Environment
from penstock.job.spec import JobSpec
from penstock.publish.kafka import KafkaOutput
from penstock.publish.output import Output, PublishBucket
from penstock.publish.spec import PublishSpec
from penstock.tables.rollup.spec import RollupSpec

OUTPUTS: dict[str, Callable[[JobSpec[RollupSpec], PublishSpec, PublishBucket, Environment], Output]] = {
    "kafka": lambda job, spec, bucket, environment: KafkaOutput(spec, job.log, bucket, environment.reach)
}


def open_output(job: JobSpec[RollupSpec], spec: PublishSpec, bucket: PublishBucket, environment: Environment) -> Output:
    """A topic of Kafka; it is opened when the first row is due."""
    return OUTPUTS["kafka"](job, spec, bucket, environment)
