"""A publisher for fault tests: it publishes numbers from its committed position, and dies at a failpoint.

python -m tests.fault.publisher BOOTSTRAP TOPIC POSITIONS [FAILPOINT]
"""

from __future__ import annotations

import sys
from contextlib import closing

from penstock.failpoints import AtStep, armed, noop
from penstock.job.spec import KafkaLogSpec
from penstock.publish.kafka import KafkaOutput
from penstock.publish.output import PUBLISH_STEPS, OutputRecord, PublishBucket, PublishPosition
from penstock.publish.spec import PublishSpec

ROWS = 50
ROWS_PER_TRANSACTION = 10
BUCKET = PublishBucket("numbers", "table-1", 0, 1)


def main(bootstrap: str, topic: str, positions: str, failpoint: str = "") -> None:
    point = armed(failpoint, PUBLISH_STEPS)
    publish_numbers(bootstrap, topic, positions, noop if point is None else point.at_step)


def publish_numbers(bootstrap: str, topic: str, positions: str, at_step: AtStep) -> None:
    """Publish the rows of one close that are not published yet."""
    spec = PublishSpec(topic, positions_topic=positions, buckets=1)
    with closing(KafkaOutput(spec, KafkaLogSpec(bootstrap), BUCKET, at_step)) as output:
        position = output.open() or PublishPosition(1)
        while (start := int(position.after or 0)) < ROWS:
            numbers = range(start, start + ROWS_PER_TRANSACTION)
            position = PublishPosition(1, str(numbers.stop))
            output.publish([OutputRecord(b"k", str(number).encode()) for number in numbers], position)


if __name__ == "__main__":
    main(*sys.argv[1:])
