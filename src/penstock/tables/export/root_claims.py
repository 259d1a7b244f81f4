"""What the jobs of one root reserve for themselves, by objects that are created only if absent."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.lake.storage import NotFoundError, Storage
from penstock.tables.export.names import CLAIMS, NameSpace, claim_of, is_of_topic, topic_claim
from penstock.tables.export.spec import ExportSpec

CLAIMS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class RootClaims:
    """What a job reserves below the root that it shares with others."""

    storage: Storage
    job: JobSpec[ExportSpec]
    space: NameSpace

    def claim_names(self, topics: Iterable[str]) -> None:
        """Reserve the beginnings of file names: two jobs never write the same name (S5, S7)."""
        self.refuse_other_names(topics)
        for topic in sorted(set(topics)):
            owner = self._owner(claim_of(self.space.of(topic)))
            if owner != self.job.name:
                raise UserError(
                    f"the root {self.job.table.path} is used by the job {owner} under the same file names",
                    hint="give each cluster a name of its own (table.export.cluster), or each job its own root",
                )

    def claim_topics(self, topic_ids: Iterable[str]) -> None:
        """Reserve what topics hold of each type: under other names, a second job would write every row once more."""
        wanted = [(topic_id, name) for topic_id in sorted(set(topic_ids)) for name in sorted(self.job.table.all_types)]
        paths = [topic_claim(*place) for place in wanted]
        with ThreadPoolExecutor(CLAIMS_AT_ONCE) as pool:
            # Looked at first: a job that is refused must leave no claim that keeps others away.
            owners = list(pool.map(partial(known_owner, self.storage), paths))
            if all(owner in (None, self.job.name) for owner in owners):
                owners = list(pool.map(self._owner, paths))
        for (topic_id, name), owner in zip(wanted, owners, strict=True):
            if owner not in (None, self.job.name):
                raise UserError(
                    f"the job {owner} already writes the type {name} of the same topic to {self.job.table.path}",
                    detail=f"the topic's id is {topic_id}: readers of {name}/ would see every row twice",
                    hint="give one of the jobs a root of its own, or let one job do the work of both",
                )

    def refuse_other_names(self, topics: Iterable[str]) -> None:
        """Refuse a job file under which files of the job would no longer be known as its own.

        Only another `cluster` does that: what a topic's names begin with never changes otherwise.
        """
        expected = {self.space.of(topic): topic for topic in topics}
        for entry in self.storage.list(CLAIMS):
            claimed = entry.path.rsplit("/", 1)[-1]
            now = next((new for new, topic in expected.items() if is_of_topic(claimed, topic)), None)
            if claimed not in expected and now and self.storage.read(entry.path).decode() == self.job.name:
                raise UserError(
                    f"the job {self.job.name} has named files below {self.job.table.path} that begin with {claimed}",
                    detail=f"by the job file they would begin with {now}",
                    hint="set table.export.cluster to what it was, or write to a new root",
                )

    def _owner(self, path: str) -> str:
        """The job that has the claim: this one, unless another was first."""
        landed = self.storage.put_if_absent(path, self.job.name.encode())
        return self.job.name if landed else self.storage.read(path).decode()


def known_owner(storage: Storage, path: str) -> str | None:
    """The job that has a claim; None if there is no such claim."""
    try:
        return storage.read(path).decode()
    except NotFoundError:
        return None
