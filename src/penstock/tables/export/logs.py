"""The logs of an export: one job log with the positions, and one ordinary Delta log for every type.

With `format: delta` the log of a type is that of its table, `<root>/<type>`. With `format: parquet` it lies below
`_penstock/` and only Penstock reads it: it names plain files by their final paths, each with the name under which it
was staged as a partition value. A staged file that an active entry names is renamed by the first process that finds it
(`finishing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial, reduce

import pyarrow as pa

from penstock.environment import Environment
from penstock.errors import PenstockError, UserError
from penstock.flow.columns.fitting import folded, grown, respelled
from penstock.flow.compile import visible_schema
from penstock.job.spec import DAY_FOLDER, JobSpec
from penstock.lake.delta.keys import fingerprint, flow_key, jobs_with_positions
from penstock.lake.delta.opening import find_table, open_or_create
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.schema import TablePlace, fit
from penstock.lake.delta.table import Change, DeltaLog
from penstock.lake.state import DeltaPartition, Totals
from penstock.logs.log import Partition
from penstock.storage import Storage, open_storage
from penstock.tables.export.names import name_space
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.state import EVENT_MS, Days, ExportState, parse_days, parse_state, routing_key, type_key

STAGED = "_staged"
"""The partition column of a plain type's log that holds the name under which a file was staged."""
FILES_END = "files_end"
"""The number of a partition in a type's log that holds the end of the last slice with files."""
LOGS_AT_ONCE = 16
LOST = "restore _penstock/, or restore the logs from the files: penstock rebuild JOB"
_NO_COLUMNS = pa.schema([("_", pa.string())])
"""The job log has no rows; a Delta table has at least one column."""


class ExportLogs:
    """Opens the logs of an export and keeps the columns of its types."""

    def __init__(self, job: JobSpec[ExportSpec], environment: Environment, storage: Storage | None = None) -> None:
        self.job = job
        self.export = job.table
        self.environment = environment
        self.is_plain = job.table.format == "parquet"
        self.root = job.table.path.rstrip("/")
        self.storage = storage or open_storage(job.table.path, job.table.storage_options)
        self.home = f"_penstock/{job.name}"
        """The folder with the job log, below the root like the others."""
        self.staged = f"{self.home}/staged"
        self.unreadable: dict[str, str] = {}
        """Types whose logs could not be opened, with the reason: they fail alone."""
        self._job_log: DeltaLog | None = None
        self._logs: dict[str, DeltaLog] = {}
        self._state = ExportState()

    def space_of(self, topic: str) -> str:
        """The prefix of the file names of a topic."""
        return name_space(self.export.cluster, topic)

    # the job log

    def job_place(self) -> TablePlace:
        return TablePlace(f"{self.root}/{self.home}", storage_options=self.export.storage_options, numbers=(EVENT_MS,))

    def find_job_log(self) -> DeltaLog | None:
        if self._job_log is None:
            self._job_log = find_table(self.job_place(), self.job.name, self.environment)
        return self._job_log

    @property
    def job_log(self) -> DeltaLog:
        """The job log. Raises if it is missing: the user creates or restores it."""
        log = self.find_job_log()
        if log is None:
            raise UserError(
                f"there is no log of the job {self.job.name} at {self.export.path}",
                hint=f"`penstock run` creates it; if it was lost, {LOST}",
            )
        return log

    def create_job_log(self) -> DeltaLog:
        """The job log, created if it is missing."""
        if self.find_job_log() is None:
            self._job_log = open_or_create(self.job_place(), self.job.name, _NO_COLUMNS, "add", self.environment)
            # Type logs take the quarantine folder from the job log.
            self._logs.clear()
        return self.job_log

    def state(self) -> ExportState:
        """The state of the job log as of its newest version; empty while there is no job log."""
        if (log := self.find_job_log()) is not None:
            log.refresh()
        return self.cached_state()

    def cached_state(self) -> ExportState:
        """The state of the job log as of the version that is loaded."""
        log = self._job_log
        if log is not None and self._state.version != log.version:
            self._state = parse_state(log.version, log.transactions(), self.job.name)
        return self._state

    # the logs of types

    def type_place(self, name: str) -> TablePlace:
        job_log = self.find_job_log()
        return TablePlace(
            f"{self.root}/{self.home}/types/{name}" if self.is_plain else f"{self.root}/{name}",
            storage_options=self.export.storage_options,
            partition_by=(DAY_FOLDER, STAGED) if self.is_plain else (DAY_FOLDER,),
            files_url=self.root if self.is_plain else "",
            quarantine_url="" if job_log is None else job_log.quarantine_url,
            numbers=(FILES_END,),
        )

    def find_type_log(self, name: str, *, refresh: bool = False) -> DeltaLog | None:
        """The log of a type, read again on request; None if there is none, or if it is one of the `unreadable`."""
        try:
            log = self._logs.get(name) or find_table(self.type_place(name), self.job.name, self.environment)
            if log is not None:
                if refresh:
                    log.refresh()
                self._logs[name] = log
                self.unreadable.pop(name, None)
            return log
        except PenstockError as error:
            self.unreadable[name] = error.primary
            self._logs.pop(name, None)
            return None

    def type_logs(self, *, refresh: bool = False) -> dict[str, DeltaLog]:
        """The logs that are there and can be opened, read again on request; the others are in `unreadable`."""
        names = list(self.export.types)
        with ThreadPoolExecutor(LOGS_AT_ONCE) as pool:
            logs = list(pool.map(partial(self.find_type_log, refresh=refresh), names))
        return {name: log for name, log in zip(names, logs, strict=True) if log is not None}

    def days_of(self, name: str) -> Days:
        """The days of a type, as of the version of its log that is loaded."""
        log = self.find_type_log(name)
        return {} if log is None else parse_days(log.transactions(), self.job.name)

    def counted(self, name: str, partition: Partition) -> DeltaPartition:
        """The state of a partition in the log of a type, as of the version that is loaded."""
        log = self.find_type_log(name)
        return DeltaPartition() if log is None else log.cached_state([partition]).of(partition)

    def files_ends(self, names: Iterable[str], partition: Partition) -> dict[str, int]:
        """The end of the last slice with files of each type, as of the versions that are loaded."""
        ends = {name: self.counted(name, partition).numbers.get(FILES_END) for name in names}
        return {name: end for name, end in ends.items() if end is not None}

    def taken_from(self, name: str, partition: Partition, start: int) -> int:
        """The first offset that a type lacks: a process that died after its commit left it ahead (RULES E3)."""
        position = self.counted(name, partition).position
        if position is None or position <= start:
            return start
        if self._logs[name].transaction(flow_key(self.job.name)) not in (None, self.settings_of(name)):
            raise UserError(
                f"the job file was changed after a process died in the middle of a commit to type {name}",
                detail=f"its log has records of {partition} up to offset {position}, the job log those below {start}; "
                "with another job file other records may fit, and would be lost or written twice",
                hint="run the job once with the job file as it was then, and change it afterwards",
            )
        return position

    def settings_of(self, name: str) -> int:
        """A fingerprint of everything in the job file that decides which records become rows of a type (RULES E5)."""
        job, on = self.job, self.job.on
        policies = (on.bad_record, on.tombstone, on.new_column)
        kind = replace(self.export.types[name], rotation=None)
        return fingerprint(repr((job.decode, kind, self._route(), self.export.days, job.columns, policies)))

    def routing(self) -> int:
        """A fingerprint of what decides the type of a record, independent of the order in the job file."""
        values = sorted((name, sorted(spec.values)) for name, spec in self.export.types.items())
        return fingerprint(repr((self._route(), values, self.job.on.tombstone, self.job.decode.payload)))

    def _route(self) -> tuple[object, ...]:
        """The whole route: the path is not part of its repr, because it may come from a reference."""
        return self.export.route, *self.export.route.path

    # columns

    def columns_of(self, name: str) -> pa.Schema | None:
        """The columns of a type's files; None while they are not known."""
        log = self.find_type_log(name)
        names = (DAY_FOLDER, STAGED)
        return None if log is None else pa.schema([column for column in log.schema if column.name not in names])

    def decoded_of(self, name: str) -> pa.Schema | None:
        """The fields of a type's records, as the job file spells them where it names them."""
        columns, stated = self.columns_of(name), self.export.types[name].schema
        if columns is None:
            return stated
        computed = {folded(column) for column in self.job.columns}
        read = pa.schema([column for column in columns if folded(column.name) not in computed])
        return read if stated is None else respelled(read, stated)

    def fields_of(self, name: str, more: pa.Schema | None = None) -> pa.Schema | None:
        """The fields of a type by its log and the job file, and these; None while they are not known."""
        schemas = (self.decoded_of(name), self.export.types[name].schema, more)
        given = [schema for schema in schemas if schema is not None]
        return reduce(grown, given) if given else None

    def add_columns(self, name: str, more: pa.Schema | None = None) -> None:
        """Give the log of a type its fields, these and the computed columns; create it if it is missing.

        Columns of other processes keep their types. A type whose fields are not given has no log yet.
        """
        decoded = self.fields_of(name, more)
        if decoded is None:
            return
        partitions = [(DAY_FOLDER, pa.date32()), *([(STAGED, pa.string())] if self.is_plain else [])]
        columns = pa.schema([*visible_schema(self.job, decoded), *partitions])
        log = self.find_type_log(name)
        if log is None or len(fit(log.schema, columns, "add", log.spec.path)):
            place = self.type_place(name)
            self._logs[name] = open_or_create(place, self.job.name, columns, "add", self.environment)

    # types

    def agree_on_types(self) -> None:
        """Create the logs that are missing, and enter the routing and the types that the job log does not know yet."""
        state = self.state()
        for fault in self.lost_logs(state):
            raise UserError(fault, detail="its records would be written again, or be missing", hint=LOST)
        self.create_job_log()
        self.type_logs()
        for name in self.export.types:
            if name not in self.unreadable:
                self.add_columns(name)
        self.enter_types()

    def reopen(self, name: str) -> None:
        """Open the log of a type that failed once more; create it if that was not possible when the job started."""
        self._logs.pop(name, None)
        if self.find_type_log(name) is None:
            self.agree_on_types()

    def enter_types(self) -> None:
        """Enter the types and the routing into the job log; a new type begins at the position of the job."""

        def decide() -> Change | None:
            state = self.cached_state()
            self.refuse_unnamed_types(state)
            self._refuse_rerouted(state)
            numbers = {} if state.routing == self.routing() else {routing_key(self.job.name): self.routing()}
            for name in self.export.types:
                log_id = self.log_id(name)
                if name not in state.types or (log_id and log_id != state.types[name]):
                    numbers[type_key(self.job.name, name)] = log_id
            return Change([], numbers, Provenance(kind="types", job=self.job.name).metadata) if numbers else None

        self.job_log.swap(decide)

    def log_id(self, name: str) -> int:
        log = self.find_type_log(name)
        return 0 if log is None else fingerprint(log.id)

    def refuse_unnamed_types(self, state: ExportState) -> None:
        unnamed = sorted(state.types.keys() - self.export.types.keys())
        if unnamed:
            raise UserError(
                f"the table has types that the job file does not name: {', '.join(unnamed)}",
                detail="this job file may be older than the one that added them",
                hint="start this process again with that job file; a type is retired with `values: []`",
            )

    def _refuse_rerouted(self, state: ExportState) -> None:
        """Records that were deferred for a type can only be found by the routing under which they were counted."""
        lagging = sorted({name for _, partition in state.started() for name in partition.lags})
        if lagging and state.routing not in (None, self.routing()):
            raise UserError(
                "route, types or values of the job file changed while records wait for a type",
                detail=f"lagging: {', '.join(lagging)}; with other routes, records could be lost or written twice",
                hint="run the job to its end with the job file as it was (`penstock run --once`), and change it then",
            )

    def lost_logs(self, state: ExportState) -> Iterator[str]:
        """What shows that the job log, or the log of a type, was deleted or replaced (RULES E6)."""
        for name, log in self.type_logs().items() if not state.partitions else ():
            if self.job.name in jobs_with_positions(log.transactions()):
                yield f"the log of type {name} has positions of the job {self.job.name}, whose own log is missing"
        for name, entered in state.types.items():
            is_lost = entered and name in self.export.types and self.log_id(name) != entered
            if is_lost and name not in self.unreadable:
                yield f"the log of type {name} is not the one that the job wrote: it was deleted or replaced"


def type_totals(logs: ExportLogs, partition: Partition) -> Totals:
    """The totals of a partition over all type logs; the job log counts the records that were read."""
    totals = [logs.counted(name, partition).totals for name in logs.export.types]
    names = ("written", "quarantined", "filtered", "replayed")
    return Totals(**{name: sum(getattr(of_type, name) for of_type in totals) for name in names})
