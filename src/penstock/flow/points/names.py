"""Names of metrics and tags as they are stored.

A metric is `name.field`. In the style of OpenTSDB it is in lower case, and characters that OpenTSDB does not accept are
deleted, in tags too. Series are never mixed up: a record whose names become equal or empty is a misfit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from penstock.flow.decode.json_text import HALF_PAIR, well_formed
from penstock.flow.decode.misfit import MisfitError, quoted
from penstock.job.spec import NameStyle

TAGS_MAX = 64
TAGS_BYTES_MAX = 64 * 1024
"""The canonical JSON of a series' tags."""
NAME_BYTES_MAX = 4 * 1024
"""A metric's name, and a field's name: a stored name has both."""

_PARTS_KEPT_MAX = 16 * 1024
_FOREIGN = re.compile(r"[^a-zA-Z0-9\-_./]+")
_ENCODE_SORTED = msgspec.json.Encoder(order="sorted").encode


@lru_cache(maxsize=_PARTS_KEPT_MAX)
def name_part(text: str, names: NameStyle) -> str:
    """A metric's name, or the key of one of its fields, as a part of the stored name. Raises `MisfitError`."""
    stored = text if names == "raw" else _stored(text, names).lower()
    if not stored:
        raise MisfitError(f"{quoted(text)} has no character that a metric name may have" if text else "is empty")
    if len(well_formed(stored).encode()) > NAME_BYTES_MAX:
        raise MisfitError(f"a name of more than {NAME_BYTES_MAX} bytes")
    return stored


def canonical_tags(tags: Mapping[str, str], names: NameStyle) -> str:
    """JSON with sorted keys; tags with an empty key or value are dropped. Raises `MisfitError`."""
    if len(tags) > TAGS_MAX:
        raise MisfitError(f"{len(tags)} tags: a series has at most {TAGS_MAX}")
    texts = "".join([*tags, *tags.values()])
    stored = {key: value for key, value in tags.items() if key and value}
    if texts != _stored(texts, names):
        sources, stored = dict[str, str](), {}
        for key, value in tags.items():
            name, text = _stored(key, names), _stored(value, names)
            if name and text:
                if name in stored:
                    raise MisfitError(f"{quoted(sources[name])} and {quoted(key)} both become {quoted(name)}")
                stored[name], sources[name] = text, key
    try:
        encoded = _ENCODE_SORTED(stored)
    except UnicodeEncodeError:
        raise MisfitError(HALF_PAIR) from None
    if len(encoded) > TAGS_BYTES_MAX:
        raise MisfitError(f"{len(encoded)} bytes: a series has at most {TAGS_BYTES_MAX}")
    return encoded.decode()


def _stored(text: str, names: NameStyle) -> str:
    return text if names == "raw" else _FOREIGN.sub("", text)
