"""A WAL in a job file."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from penstock.job.faults import KeyPath, shown
from penstock.job.reader import Reader
from penstock.job.sections import LogSection, complete_topics
from penstock.job.spec import JobSpec
from penstock.logs.wal.spec import WalLogSpec
from penstock.logs.wal.store.store import NAME


class WalLogSection(LogSection[WalLogSpec]):
    name = "wal"
    phrase = "a durable HTTP log for sources that cannot replay"
    spec = WalLogSpec

    def complete(self, log: WalLogSpec, job: JobSpec, reader: Reader) -> WalLogSpec:
        at: KeyPath = ("log", self.name)
        if log.group and not NAME.fullmatch(log.group):
            reader.note((*at, "group"), f"invalid job name {shown(log.group)}", "letters, digits, . _ -")
        owner = hashlib.sha256((job.table.path or "").encode()).hexdigest()[:16]
        completed: WalLogSpec = complete_topics(log, at, reader)
        return replace(completed, group=log.group or job.name, owner=owner)
