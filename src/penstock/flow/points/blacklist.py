"""Series that a job does not want, told by regular expressions on their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from penstock.job.spec import BlacklistEntry


class Blacklist:
    """A series is on it if the metric and a tag for each pair of an entry are found, as by `re.search`."""

    def __init__(self, entries: Sequence[BlacklistEntry]) -> None:
        self._entries = [
            (re.compile(entry.name), [(re.compile(key), re.compile(value)) for key, value in entry.tags.items()])
            for entry in entries
        ]

    def __bool__(self) -> bool:
        return bool(self._entries)

    def matches(self, metric: str, tags: Mapping[str, str]) -> bool:
        return any(
            name.search(metric) and all(_any_tag(tags, *pair) for pair in pairs) for name, pairs in self._entries
        )


def _any_tag(tags: Mapping[str, str], key: re.Pattern[str], value: re.Pattern[str]) -> bool:
    return any(key.search(name) and value.search(text) for name, text in tags.items())
