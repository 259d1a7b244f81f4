"""The series of a decoder by number; a series is a metric and its tags."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.job.spec import BlacklistEntry

BUCKETS = 256
"""A series has the same bucket in every process; never change this number, because tables store buckets."""
BLACKLISTED = -1
"""The number of every series that is on the blacklist."""

PAIR_BITS = 32
"""A pair is one number: that of a metric, shifted left by so many bits, and that of its tags."""
_LOWER_HALF = (1 << PAIR_BITS) - 1


class SeriesBook:
    """Series by number, from 0 on. The numbers are valid in this book only; it grows as long as its decoder is used."""

    def __init__(self, blacklist: Sequence[BlacklistEntry] = ()) -> None:
        self._blacklist = [
            (re.compile(entry.name), [(re.compile(key), re.compile(value)) for key, value in entry.tags.items()])
            for entry in blacklist
        ]
        self._metrics: dict[str, int] = {}
        self._metric_texts: list[str] = []
        self._tag_sets: dict[str, int] = {}
        self._tags_texts: list[str] = []
        self._series: dict[int, int] = {}
        """By pair; the numbers follow the order of the keys."""
        self._blacklisted: set[int] = set()

    def __len__(self) -> int:
        return len(self._series)

    def metric(self, name: str) -> int:
        """The number of a metric, for pairs."""
        return _numbered(name, self._metrics, self._metric_texts)

    def tag_set(self, tags: str) -> int:
        """The number of tags in canonical JSON, for pairs."""
        return _numbered(tags, self._tag_sets, self._tags_texts)

    def numbers(self, pairs: Sequence[int]) -> list[int]:
        """The series of many pairs (`PAIR_BITS`) at once, or `BLACKLISTED`."""
        series, blacklisted = self._series, self._blacklisted
        if not self._blacklist:
            return [series.setdefault(pair, len(series)) for pair in pairs]
        blacklisted |= {pair for pair in {*pairs} - series.keys() - blacklisted if self._is_blacklisted(pair)}
        return [BLACKLISTED if pair in blacklisted else series.setdefault(pair, len(series)) for pair in pairs]

    def frame(self) -> pl.DataFrame:
        """All series: `series` UInt32, `metric`, `tags`, and `bucket` Int16, a hash of both that never changes."""
        pairs = np.fromiter(self._series, np.int64, len(self._series))
        metrics, tag_sets = pairs >> PAIR_BITS, pairs & _LOWER_HALF
        buckets = _hashes(self._metric_texts)[metrics] ^ _hashes(self._tags_texts)[tag_sets]
        return pl.DataFrame(
            {
                "series": np.arange(len(pairs), dtype=np.uint32),
                "metric": pl.Series(self._metric_texts, dtype=pl.String).gather(metrics),
                "tags": pl.Series(self._tags_texts, dtype=pl.String).gather(tag_sets),
                "bucket": (buckets % BUCKETS).astype(np.int16),
            }
        )

    def _is_blacklisted(self, pair: int) -> bool:
        """Whether an entry matches the metric, and each of its pairs matches a tag, by `re.search`."""
        metric = self._metric_texts[pair >> PAIR_BITS]
        tags = msgspec.json.decode(self._tags_texts[pair & _LOWER_HALF], type=dict[str, str])
        return any(
            name.search(metric)
            and all(any(key.search(tag) and value.search(tags[tag]) for tag in tags) for key, value in pairs)
            for name, pairs in self._blacklist
        )


def bucket_numbers(metrics: Iterable[str], tags: Iterable[str]) -> npt.NDArray[np.int16]:
    """The bucket of each series, from its metric and the canonical JSON of its tags."""
    return ((_hashes(metrics) ^ _hashes(tags)) % BUCKETS).astype(np.int16)


def _numbered(text: str, numbers: dict[str, int], texts: list[str]) -> int:
    number = numbers.setdefault(text, len(texts))
    if number == len(texts):
        texts.append(text)
    return number


def _hashes(texts: Iterable[str]) -> npt.NDArray[np.int64]:
    return np.array([zlib.crc32(text.encode()) for text in texts], np.int64)
