"""What cannot be right where a job publishes; a kind of table puts a `PublishSpec` into its own section."""

from __future__ import annotations

from penstock.job.faults import KeyPath
from penstock.job.reader import Reader
from penstock.job.sections import reads_topic
from penstock.job.spec import JobSpec, KafkaLogSpec
from penstock.logs.kafka.section import KafkaLogSection, check_security
from penstock.publish.spec import PublishSpec


def check_publish(publish: PublishSpec, job: JobSpec, at: KeyPath, reader: Reader) -> None:
    """Note what is wrong with the section under this key path, and whether the job would read what it publishes."""
    if publish.topic and publish.topic == publish.positions_topic:
        reader.note((*at, "topic"), "is the topic of the positions: readers would see them among the records")
    if reader.has("log") and not reader.has("log", KafkaLogSection.name) and not reader.has(*at, "bootstrap"):
        reader.note((*at, "bootstrap"), "required key is missing: the job does not read Kafka", "as in kafka-1:9092")
    check_security(publish.security, (*at, "security"), reader)
    log = job.log
    same_cluster = isinstance(log, KafkaLogSpec) and publish.bootstrap in (None, log.bootstrap)
    if publish.topic and same_cluster and reads_topic(log, publish.topic):
        reader.note((*at, "topic"), "is a topic that the job reads: it would read what it publishes")
