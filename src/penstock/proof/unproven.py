"""What a verification cannot reconcile, in words, each with what would prove it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.logs.log import Partition
from penstock.proof.findings import Unproven

KEEP_PLACES = "keep `columns: {partition: kafka.partition, offset: kafka.offset}`"
ALL_VALUES = "compare all values: `--values --all`"

NO_PLACES = Unproven(
    "which records the rows are: the table keeps no columns of kafka.partition and kafka.offset",
    f"{KEEP_PLACES} from the first run on, or {ALL_VALUES}",
)


def rows_without_place(partition: Partition, lacking: int, without: int) -> Unproven:
    return Unproven(
        f"{lacking} offsets are not found, and {without} rows tell no partition and offset: they may be theirs",
        f"rows from before the columns were kept can only be counted; {ALL_VALUES}",
        frozenset({partition}),
    )


def mixed_lives(rows: int, partitions: Iterable[Partition]) -> Unproven:
    return Unproven(
        f"which life of a recreated topic {rows} compacted rows belong to: their offsets add up, but a row of one life "
        "may stand for a row of another",
        "verify between recreating a topic and the next compaction; nothing in these rows tells them apart any more",
        frozenset(partitions),
    )


def shared_topics(jobs: Sequence[str], partitions: Iterable[Partition]) -> Unproven:
    return Unproven(
        f"whose rows are whose: the same topics are also written by {', '.join(jobs)}",
        "give each job a table of its own",
        frozenset(partitions),
    )


def values_of_earlier_life(partition: Partition) -> Unproven:
    return Unproven(
        f"the values of rows from an earlier life of the topic ({partition.topic_id}): their log is gone",
        "compare values before a topic is deleted",
        frozenset({partition}),
    )


def values_below(partition: Partition, first: int) -> Unproven:
    return Unproven(
        f"the values of rows below offset {first}: the log no longer has their records",
        "compare values within the topic's retention",
        frozenset({partition}),
    )


def values_without_place(rows: int) -> Unproven:
    return Unproven(
        f"the values of {rows} rows that tell no partition and offset of one life of a topic",
        f"{KEEP_PLACES}; verify between recreating a topic and the next compaction",
    )


def values_gone_meanwhile(partitions: Iterable[Partition]) -> Unproven:
    return Unproven(
        "the values of rows whose records retention took while they were read", "verify again", frozenset(partitions)
    )


def values_of_mixed_files(files: int) -> Unproven:
    return Unproven(
        f"the values of rows in {files} compacted or replayed files: not all of their records are in the log",
        f"{KEEP_PLACES}, or compare values before compacting",
    )


def values_of_sql() -> Unproven:
    return Unproven(
        "the values of a job with `sql:`: its columns are computed by Spark",
        "compare a query of the table with the same query of the topic in Spark",
    )
