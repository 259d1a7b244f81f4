"""What a verification has proved of a ledger's entries, kept beside it: the next one reads only newer entries.

The object names the entry that it ends with and carries a digest of itself; one of another chain or version, or a
damaged one, is passed over (docs/protocol.md, "What `verify` proves").
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.errors import PenstockError
from penstock.lake.delta.provenance import placed
from penstock.lake.storage import Storage
from penstock.logs.log import Partition
from penstock.tables.export.ledger.state import TypeDay
from penstock.tables.export.proof.chain import Chain, Track

VERSION = 2
_DIGEST = "sha256"


@dataclass(frozen=True, slots=True)
class Proved:
    """The chain up to an entry, which `batch_id` identifies."""

    number: int
    batch_id: str
    chain: Chain
    since: str
    """When its first entries were read, as ISO 8601."""
    until: str
    """When its last ones were."""

    def __str__(self) -> str:
        when = f"on {self.until}" if self.since == self.until else f"from {self.since} to {self.until}"
        return f"entries up to {self.number} were proved {when} and not read again (--all reads them)"


def read_proved(storage: Storage, path: str) -> Proved | None:
    """What is kept, if anything that can be used."""
    try:
        body = json.loads(storage.read(path))
        return _proved(body) if body["v"] == VERSION and body.pop(_DIGEST) == _digest(body) else None
    except (PenstockError, ValueError, KeyError, TypeError, AttributeError, msgspec.ValidationError):
        return None


def keep_proved(storage: Storage, path: str, proved: Proved) -> None:
    """Keep it for the next verification; who may not write here verifies from the first entry each time."""
    try:
        storage.put(path, encode_proved(proved))
    except PenstockError:
        pass


def encode_proved(proved: Proved) -> bytes:
    chain = proved.chain
    body = {
        "v": VERSION,
        "number": proved.number,
        "batch": proved.batch_id,
        "since": proved.since,
        "until": proved.until,
        "tracks": [{"partition": placed(each), **msgspec.to_builtins(track)} for each, track in chain.tracks.items()],
        "files": dict(chain.files),
        "days": [[*day, rows, chain.last_written[day]] for day, rows in chain.days.items()],
        "first_closed": _pairs(chain.first_closed),
        "deleted": _pairs(chain.deleted),
        "deleted_rows": _pairs(chain.deleted_rows),
        "rebuilt": chain.rebuilt,
        "slices": chain.slices,
    }
    return json.dumps({**body, _DIGEST: _digest(body)}, separators=(",", ":")).encode()


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, separators=(",", ":"), sort_keys=True).encode()).hexdigest()


def _proved(body: Mapping[str, Any]) -> Proved:
    chain = Chain(
        tracks={Partition(*each["partition"]): msgspec.convert(each, Track) for each in body["tracks"]},
        deleted=_days(body["deleted"]),
        files=dict(body["files"]),
        days={(name, day): rows for name, day, rows, _ in body["days"]},
        last_written={(name, day): number for name, day, _, number in body["days"]},
        first_closed=_days(body["first_closed"]),
        deleted_rows=_days(body["deleted_rows"]),
        rebuilt=body["rebuilt"],
        slices=body["slices"],
    )
    return Proved(body["number"], body["batch"], chain, body["since"], body["until"])


def _pairs(days: Mapping[TypeDay, int]) -> list[list[Any]]:
    return [[*day, number] for day, number in days.items()]


def _days(pairs: list[list[Any]]) -> dict[TypeDay, int]:
    return {(name, day): number for name, day, number in pairs}
