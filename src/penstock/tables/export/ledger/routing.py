"""What decides which type a record is of, as the ledger keeps it (RULES L5).

Records that wait are found again only under the routing by which they were counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.job.spec import JobSpec, Payload, RouteSpec, TombstonePolicy, UnknownTypePolicy
from penstock.tables.export.spec import ExportSpec

ID_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Routing:
    """Two processes with equal routings give every record the same type."""

    route: RouteSpec
    values: Mapping[str, tuple[str, ...]]
    tombstone: TombstonePolicy
    payload: Payload

    @staticmethod
    def of(job: JobSpec[ExportSpec]) -> Routing:
        values = {name: spec.values for name, spec in job.table.types.items()}
        return Routing(job.table.route, values, job.on.tombstone, job.decode.payload)

    @property
    def text(self) -> str:
        """The form in which the ledger keeps it: the same for job files that differ only in order."""
        body = {
            "by": self.route.by,
            "path": list(self.route.path),
            "unknown": self.route.unknown,
            "unknown_type": self.route.unknown_type,
            "values": {name: sorted(values) for name, values in self.values.items()},
            "tombstone": self.tombstone,
            "payload": self.payload,
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    @property
    def id(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:ID_CHARACTERS]

    def is_unknown(self, name: str) -> bool:
        """Whether a type is the table of records that no other type takes."""
        return self.route.unknown is UnknownTypePolicy.TABLE and name == self.route.unknown_type


def parse_routing(text: str) -> Routing:
    body = json.loads(text)
    route = RouteSpec(body["by"], tuple(body["path"]), UnknownTypePolicy(body["unknown"]), body["unknown_type"])
    values = {name: tuple(each) for name, each in body["values"].items()}
    return Routing(route, values, TombstonePolicy(body["tombstone"]), Payload(body["payload"]))
