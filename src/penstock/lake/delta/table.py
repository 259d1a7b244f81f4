"""A Delta table that carries its job's positions: read its state, commit to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.transaction import RemoveAction

from penstock.environment import Environment
from penstock.errors import OutcomeUnknownError, PenstockError, TransientError
from penstock.events import CheckpointFailed
from penstock.flow.write.manifest import StagedFile, Vector
from penstock.lake.delta.effect import Effect, effect
from penstock.lake.delta.entry import Action, AddFile, entry_text
from penstock.lake.delta.files import ActiveFile, active_files, check_staged
from penstock.lake.delta.keys import state_of
from penstock.lake.delta.library import ConflictError, library_errors, tried_once
from penstock.lake.delta.log_files import LoggedFile, app_transactions, entry_path, logged_files
from penstock.lake.delta.provenance import Provenance, commits_of, provenance_of
from penstock.lake.delta.schema import TablePlace, missing_columns
from penstock.lake.delta.vectors import VECTORS_FEATURE, VECTORS_PROPERTY
from penstock.lake.proposal import Outcome, Proposal, ProposalPart, RemovedFile, SlicePart, check
from penstock.lake.state import DeltaState
from penstock.logs.log import Partition
from penstock.storage import Storage, open_storage

COMMIT_ATTEMPTS_MAX = 20
STORE_FAILURES_MAX = 5
"""Failures of one commit other than conflicts: the library has retried each several times already."""
QUARANTINE_FOLDER = "_quarantine"
"""Below a table: readers and vacuums ignore folders whose names begin with `_`."""
CHECKPOINT_INTERVAL = 100
"""Entries between checkpoints, where the table has no property for it, as in the library."""
_BACKOFF_SECONDS_MAX = 2.0
T = TypeVar("T")


class SchemaMovedError(TransientError):
    """The table's columns changed so that staged files no longer fit: the batch has to be written again."""


@dataclass(frozen=True, slots=True)
class Change:
    """One commit that is not a batch of a log: an append to quarantine, a compaction, a replay."""

    actions: Sequence[Action]
    transactions: Mapping[str, int]
    metadata: Mapping[str, Any]


class DeltaLog:
    """One Delta table under one job. Every commit compares and swaps on the version that was checked (RULES C3)."""

    def __init__(self, spec: TablePlace, job: str, handle: DeltaTable, environment: Environment) -> None:
        self.spec = spec
        self.job = job
        self.environment = environment
        self.handle = handle
        self.id = str(handle.metadata().id)
        """The id of this incarnation: a recreated table has another one."""
        self.quarantine_url = spec.quarantine_url or f"{spec.path.rstrip('/')}/{QUARANTINE_FOLDER}/{job}/{self.id}"
        """Where the quarantine files lie that commits list. A table whose quarantine lies elsewhere sets its own."""
        self._state = DeltaState(handle.version(), {}, {})
        self._numbers: tuple[int, Mapping[str, int]] | None = None
        self._logged: tuple[int, Mapping[str, LoggedFile]] | None = None
        self._files: tuple[int, dict[tuple[str, ...], tuple[ActiveFile, ...]]] = (-1, {})

    @property
    def version(self) -> int:
        return self.handle.version()

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow types, field metadata left out."""
        return pa.schema(self.handle.schema().to_arrow()).remove_metadata()

    def storage(self) -> Storage:
        """Where the table lies, with its log."""
        return open_storage(self.spec.path, self.spec.storage_options)

    def file_storage(self) -> Storage:
        """Where the paths of its files begin."""
        return open_storage(self.spec.files_url or self.spec.path, self.spec.storage_options)

    def refresh(self) -> None:
        """Load the newest version."""
        with library_errors(self.spec.path):
            self.handle.update_incremental()

    def state(self, partitions: Iterable[Partition]) -> DeltaState:
        """The state of these partitions, as of the newest version."""
        self.refresh()
        return self.cached_state(partitions)

    def cached_state(self, partitions: Iterable[Partition]) -> DeltaState:
        """The same, as of the version that is loaded."""
        requested = set(partitions)
        if self._state.version != self.version or not requested <= self._state.partitions.keys():
            requested |= self._state.partitions.keys()
            self._state = state_of(self.version, self.transaction, self.job, requested, self.spec.numbers)
        return self._state

    def transactions(self) -> Mapping[str, int]:
        """Every app transaction as of the loaded version: the library reads the whole checkpoint again for each."""
        if self._numbers is None or self._numbers[0] != self.version:
            self._numbers = (self.version, app_transactions(self.storage(), self.version, self._numbers))
        return self._numbers[1]

    def transaction(self, key: str) -> int | None:
        return self.transactions().get(key)

    def commits(self) -> Iterator[Provenance]:
        """The records of the job's commits up to the loaded version, newest first."""
        with library_errors(self.spec.path):
            history = self.handle.history()
        for _, commit in commits_of(history, self.job):
            yield commit

    def active_files(self, spans_of: tuple[str, ...] = ()) -> tuple[ActiveFile, ...]:
        """The files of the loaded version, with the statistics of some columns; read once."""
        if self._files[0] != self.version:
            self._files = (self.version, {})
        files = self._files[1].get(spans_of)
        if files is None:
            vectors = self.vectors()
            with library_errors(self.spec.path):
                files = active_files(self.handle, spans_of)
            files = tuple(replace(file, vector=vectors.get(file.path)) for file in files) if vectors else files
            self._files[1][spans_of] = files
        return files

    @property
    def has_vectors(self) -> bool:
        """Whether files may have deletion vectors; then commits write the entry of the log themselves."""
        return VECTORS_FEATURE in (self.handle.protocol().writer_features or ())

    @property
    def marks_rows(self) -> bool:
        """Whether new vectors may be written."""
        enabled = self.handle.metadata().configuration.get(VECTORS_PROPERTY) == "true"
        return enabled and self.has_vectors

    def vectors(self) -> dict[str, Vector]:
        """The deletion vectors of the loaded version, by the path of the data."""
        logged = self.logged_files() if self.has_vectors else {}
        return {path: file.vector for path, file in logged.items() if file.vector is not None}

    def logged_files(self) -> Mapping[str, LoggedFile]:
        """The files of the loaded version as the log has them."""
        if self._logged is None or self._logged[0] != self.version:
            self._logged = (self.version, logged_files(self.storage(), self.version, self._logged))
        return self._logged[1]

    def commit(self, proposal: Proposal, written_with: pa.Schema | None = None) -> Outcome:
        """Commit the proposal as far as the table accepts it, partition by partition (RULES C2 to C4).

        `written_with` is the schema of the staged files; if the table no longer has those columns, they cannot land.
        """
        return self.commit_revised(lambda: proposal, written_with)

    def commit_revised(
        self,
        revise: Callable[[], Proposal],
        written_with: pa.Schema | None = None,
        prepare: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Like `commit`, for a proposal that depends on the version before it: `revise` makes it for the loaded one.

        `prepare` is called once parts are accepted, before every attempt to commit.
        """

        def attempt() -> Outcome | TransientError:
            proposal = revise()
            state = self.cached_state([part.partition for part in proposal.parts])
            self.check_schema(written_with)
            checked = check(proposal, state)
            if not checked.accepted:
                return Outcome(None, (), checked.refused)
            self.environment.at_step("checked")
            self._check_staged(proposal, checked.accepted)
            prepare()
            commit = effect(proposal, checked.accepted, state)
            failure = self._land(proposal, commit)
            if failure is not None:
                return failure
            self._remember(state, commit, [part.partition for part in checked.accepted])
            return Outcome(self.version, checked.accepted, checked.refused)

        return self._retried(attempt)

    def swap(self, decide: Callable[[], Change | None], step: str = "") -> bool:
        """Commit what `decide` makes of the newest version, again after every conflict, until it has nothing to do.

        `decide` must recognise that its change has landed; so an unknown outcome needs no read-back.
        Returns whether this call committed anything.
        """

        def attempt() -> bool | TransientError:
            change = decide()
            if change is None:
                return False
            if step:
                self.environment.at_step(step)
            try:
                self.commit_actions(change.actions, change.transactions, change.metadata)
            except TransientError as error:
                return error
            self.refresh()
            return True

        return self._retried(attempt)

    def _retried(self, attempt: Callable[[], T | TransientError]) -> T:
        """Repeat `attempt` on the newest version while it returns why it failed, within bounds."""
        store_failures = 0
        for number in range(COMMIT_ATTEMPTS_MAX):
            self.refresh()
            result = attempt()
            if not isinstance(result, TransientError):
                return result
            store_failures += not isinstance(result, ConflictError)
            if store_failures >= STORE_FAILURES_MAX:
                raise result
            self.environment.back_off(number, _BACKOFF_SECONDS_MAX)
        raise TransientError(
            f"gave up after {COMMIT_ATTEMPTS_MAX} other commits came first at {self.spec.path}",
            hint="the batch is written again; if this repeats, use fewer writers for this table",
        )

    def commit_actions(
        self, actions: Sequence[Action], transactions: Mapping[str, int], metadata: Mapping[str, Any]
    ) -> None:
        """One compare-and-swap attempt on the loaded version; `ConflictError` if another commit came first."""
        now_ms = int(self.environment.now() * 1000)
        if self.has_vectors:
            self._write_entry(entry_text(actions, self.vectors(), transactions, metadata, now_ms))
            return
        numbers = [Transaction(key, number, now_ms) for key, number in transactions.items()]
        with library_errors(self.spec.path):
            self.handle.create_write_transaction(
                list(actions),
                "append",
                self.handle.schema(),
                partition_by=list(self.spec.partition_by),
                commit_properties=tried_once(metadata, numbers),
                post_commithook_properties=PostCommitHookProperties(),
            )

    def _write_entry(self, text: bytes) -> None:
        """Make this the entry of the next version; checkpoints are as many as after commits by the library."""
        version = self.version + 1
        try:
            if not self.storage().put_if_absent(entry_path(version), text):
                raise ConflictError(f"another commit came first at {self.spec.path}")
        except OutcomeUnknownError as error:
            raise TransientError(error.primary, detail=error.detail, hint=error.hint) from error
        every = self.handle.metadata().configuration.get("delta.checkpointInterval", "")
        if (version + 1) % (int(every) if every.isdecimal() and int(every) else CHECKPOINT_INTERVAL):
            return
        try:
            with library_errors(self.spec.path):
                self.handle.update_incremental()
                self.handle.create_checkpoint()
                if self.handle.metadata().configuration.get("delta.enableExpiredLogCleanup") != "false":
                    self.handle.cleanup_metadata()
        except PenstockError as error:
            self.environment.listener.event(CheckpointFailed(version, error.primary, error.detail))

    def stamped(self, files: Iterable[StagedFile], stamps: Mapping[str, str]) -> list[StagedFile]:
        """The files with the partition columns that a commit on the loaded version fills in."""
        values = {column: str(self.transaction(key) or 0) for column, key in stamps.items()}
        return [
            msgspec.structs.replace(file, partition_values={**file.partition_values, **values}) if values else file
            for file in files
        ]

    def add_action(self, file: StagedFile, data_change: bool = True) -> AddFile:
        return AddFile(
            file.path,
            file.size_bytes,
            dict(file.partition_values),
            int(self.environment.now() * 1000),
            data_change,
            file.stats,
            file.vector,
        )

    def remove_action(self, file: ActiveFile | RemovedFile, data_change: bool = True) -> RemoveAction:
        now_ms = int(self.environment.now() * 1000)
        values = (
            file.partition_values
            if isinstance(file, RemovedFile)
            else zip(self.spec.partition_by, file.values, strict=True)
        )
        return RemoveAction(file.path, data_change, now_ms, file.size_bytes, dict(values))

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns, and fields of columns; if another process adds them first, they have its types."""

        def attempt() -> ConflictError | None:
            missing = missing_columns(self.schema, columns)
            if not len(missing):
                return None
            try:
                with library_errors(self.spec.path):
                    self.handle.alter.add_columns(
                        Schema.from_arrow(missing).fields,
                        commit_properties=tried_once(Provenance(kind="columns", job=self.job).metadata),
                    )
            except ConflictError as error:
                return error
            return None

        self._retried(attempt)

    def _land(self, proposal: Proposal, commit: Effect) -> TransientError | None:
        """Try the commit once; after any error the table is read back to see whether it landed (RULES C2).

        Returns None once it is there, or why it is not.
        """
        before = self.version
        try:
            files = self.stamped(commit.files, proposal.stamps)
            actions: list[Action] = [self.remove_action(remove) for remove in proposal.removes]
            actions += [self.add_action(file) for file in files]
            self.commit_actions(actions, commit.transactions, commit.metadata)
        except TransientError as error:
            self.refresh()
            with library_errors(self.spec.path):
                since = self.handle.history(self.version - before) if self.version > before else []
            batches = {landed.batch for record in since if (landed := provenance_of(record)) is not None}
            return None if proposal.batch_id in batches else error
        self.refresh()
        return None

    def _remember(self, state: DeltaState, commit: Effect, partitions: Iterable[Partition]) -> None:
        """Keep the state that our own commit made, if no other followed it; else it is read again."""
        if self._numbers is None or not self._numbers[0] == state.version == self.version - 1:
            return
        self._numbers = (self.version, {**self._numbers[1], **commit.transactions})
        changed = state_of(self.version, self.transaction, self.job, partitions, self.spec.numbers)
        fingerprints = {**state.fingerprints, **changed.fingerprints}
        self._state = DeltaState(self.version, {**state.partitions, **changed.partitions}, fingerprints)

    def check_schema(self, written_with: pa.Schema | None) -> None:
        """`SchemaMovedError` if files written with these columns no longer fit the loaded version."""
        if written_with is None:
            return
        types = {column.name: column.type for column in self.schema}
        if any(types.get(column.name) != column.type for column in written_with):
            raise SchemaMovedError(f"the columns of {self.spec.path} changed while a batch was written")

    def _check_staged(self, proposal: Proposal, accepted: tuple[ProposalPart, ...]) -> None:
        """Executors may have disks of their own, and a batch that waited may have lost files to a vacuum."""
        parts = [part for part in accepted if isinstance(part, SlicePart)]
        if not self.spec.files_url:
            check_staged(self.storage(), [*(file for part in parts for file in part.files), *proposal.files])
        quarantined = [file for part in parts for file in part.quarantine_files]
        if quarantined:
            check_staged(open_storage(self.quarantine_url, self.spec.storage_options), quarantined)
