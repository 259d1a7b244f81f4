"""The first thing that each of several partitions has to tell from an offset on, by a consumer that joins no group."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, Message, TopicPartition

from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.faults import UNUSED_GROUP_DENIED, error_of, fault_of
from penstock.logs.kafka.offsets import open_consumer
from penstock.logs.log import Partition

_POLL_SECONDS = 0.1


def first_events(
    spec: KafkaLogSpec, settings: Mapping[str, str], places: Mapping[Partition, TopicPartition], seconds_max: float
) -> Iterator[tuple[Partition, Message]]:
    """A record, the end of the log, or a reset for any cause; a partition that does not answer in time is absent."""
    waiting = {(each.topic, each.number): each for each in places}
    deadline = time.monotonic() + seconds_max
    consumer = open_consumer(spec, settings)
    try:
        consumer.assign(list(places.values()))
        while waiting and time.monotonic() < deadline:
            event = consumer.poll(_POLL_SECONDS)
            if event is None or not _is_answer(event, spec.bootstrap):
                continue
            partition = waiting.pop((event.topic() or "", event.partition() or 0), None)
            if partition is not None:
                # Its further records would only fill the queue.
                consumer.pause([TopicPartition(partition.topic, partition.number)])
                yield partition, event
    except KafkaException as error:
        raise error_of(fault_of(error), spec.bootstrap, "first records") from error
    finally:
        consumer.close()


def _is_answer(event: Message, bootstrap: str) -> bool:
    error = event.error()
    if error is None or error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
        return True
    if error.code() != UNUSED_GROUP_DENIED and (not error.retriable() or error.fatal()):
        raise error_of(fault_of(error), bootstrap, f"topic {event.topic()}")
    return False


def record_times(spec: KafkaLogSpec, offsets: Mapping[Partition, int], seconds_max: float) -> dict[Partition, float]:
    """When the first record at or after each offset was made, as `Log.record_times` says."""
    if not offsets:
        return {}
    places = {each: TopicPartition(each.topic, each.number, offset) for each, offset in offsets.items()}
    found: dict[Partition, float] = {}
    # Retention may pass an offset meanwhile.
    for partition, event in first_events(spec, {"auto.offset.reset": "earliest"}, places, seconds_max):
        kind, at_ms = event.timestamp()
        if event.error() is None and kind != TIMESTAMP_NOT_AVAILABLE:
            found[partition] = at_ms / 1000
    return found
