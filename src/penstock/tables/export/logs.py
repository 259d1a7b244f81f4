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

import pyarrow as pa

from penstock.environment import Environment
from penstock.errors import PenstockError, UserError
from penstock.flow.columns.computed import output_type
from penstock.flow.columns.fitting import folded, grown, respelled
from penstock.job.spec import DAY_FOLDER, JobSpec, NewColumnPolicy
from penstock.lake.delta.keys import fingerprint, flow_key
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.schema import TablePlace, fit
from penstock.lake.delta.table import Change, Table, find_table, open_or_create
from penstock.lake.state import Totals
from penstock.logs.log import Partition
from penstock.storage import Storage, open_storage
from penstock.tables.export.names import NameSpace, Places
from penstock.tables.export.spec import ExportSpec, TypeSpec
from penstock.tables.export.state import EVENT_MS, Days, ExportState, parse_days, parse_state, routing_key, type_key

STAGED = "_staged"
"""The partition column of a plain type's log that holds the name under which a file was staged."""
FILES_END = "files_end"
"""The number of a partition in a type's log that says where the last slice ends that has files."""
REPLAYED_END = "replayed_end"
"""The same for rows that were replayed: the type was complete up to there, whatever its own position says."""
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
        self.places = Places(job.name)
        self.space = NameSpace(job.table.cluster)
        self.unreadable: dict[str, str] = {}
        """Types whose logs could not be opened, with the reason: they fail alone."""
        self._job_log: Table | None = None
        self._logs: dict[str, Table] = {}
        self._state = ExportState()

    # the job log

    def job_place(self) -> TablePlace:
        path = f"{self.root}/{self.places.home}"
        return TablePlace(path, storage_options=self.export.storage_options, numbers=(EVENT_MS,))

    def find_job_log(self) -> Table | None:
        if self._job_log is None:
            self._job_log = find_table(self.job_place(), self.job.name, self.environment)
        return self._job_log

    @property
    def job_log(self) -> Table:
        """The job log; one that is missing is the user's to create or to restore."""
        log = self.find_job_log()
        if log is None:
            raise UserError(
                f"there is no log of the job {self.job.name} at {self.export.path}",
                hint=f"`penstock run` creates it; if it was lost, {LOST}",
            )
        return log

    def create_job_log(self) -> Table:
        """The job log, created if it is missing."""
        if self.find_job_log() is None:
            place = self.job_place()
            self._job_log = open_or_create(place, self.job.name, _NO_COLUMNS, NewColumnPolicy.ADD, self.environment)
            # They list quarantine files where the new job log says.
            self._logs.clear()
        return self.job_log

    def state(self) -> ExportState:
        """What the job log says, as of its newest version; an empty state while there is none."""
        if (log := self.find_job_log()) is not None:
            log.refresh()
        return self.known_state()

    def known_state(self) -> ExportState:
        """The same, as of the version that is loaded."""
        log = self._job_log
        if log is not None and self._state.version != log.version:
            self._state = parse_state(log.version, log.transactions(), self.job.name)
        return self._state

    # the logs of types

    def type_place(self, name: str) -> TablePlace:
        job_log = self.find_job_log()
        return TablePlace(
            f"{self.root}/{self.places.types}/{name}" if self.is_plain else f"{self.root}/{name}",
            storage_options=self.export.storage_options,
            partition_by=(DAY_FOLDER, STAGED) if self.is_plain else (DAY_FOLDER,),
            files_url=self.root if self.is_plain else "",
            quarantine_url="" if job_log is None else job_log.quarantine_url,
            numbers=(FILES_END, REPLAYED_END),
        )

    def find_type_log(self, name: str) -> Table | None:
        """The log of a type, as it was last read; None if there is none."""
        if name not in self._logs:
            log = find_table(self.type_place(name), self.job.name, self.environment)
            if log is None:
                return None
            self._logs[name] = log
        self.unreadable.pop(name, None)
        return self._logs[name]

    def type_logs(self) -> Iterator[tuple[str, Table]]:
        """The logs that are there and can be opened; the others are in `unreadable`."""
        names = list(self.export.types)
        with ThreadPoolExecutor(LOGS_AT_ONCE) as pool:
            for name, log in zip(names, pool.map(self._readable, names), strict=True):
                if log is not None:
                    yield name, log

    def refresh_types(self) -> None:
        """Read the logs of all types again."""
        with ThreadPoolExecutor(LOGS_AT_ONCE) as pool:
            list(pool.map(self.refreshed, self.export.types))

    def refreshed(self, name: str) -> Table | None:
        """The log of a type, read again; None if there is none, or if it cannot be read, which fails the type alone."""
        return self._readable(name, refresh=True)

    def _readable(self, name: str, refresh: bool = False) -> Table | None:
        try:
            log = self.find_type_log(name)
            if log is not None and refresh:
                log.refresh()
            return log
        except PenstockError as error:
            self.unreadable[name] = error.primary
            self._logs.pop(name, None)
            return None

    def days_of(self, name: str) -> Days:
        """The days of a type, as of the version of its log that is loaded."""
        log = self._readable(name)
        return {} if log is None else parse_days(log.transactions(), self.job.name)

    def position(self, name: str, partition: Partition) -> int | None:
        """The offset up to which the log of a type holds its records, as of the version that is loaded."""
        log = self._readable(name)
        return None if log is None else log.known_state([partition]).of(partition).position

    def files_ends(self, names: Iterable[str], partition: Partition) -> dict[str, int]:
        """Where the last slice ends that has files of a type, as of the versions that are loaded."""
        logs = {name: log for name in names if (log := self._readable(name)) is not None}
        numbers = {name: log.known_state([partition]).of(partition).numbers for name, log in logs.items()}
        return {name: known[FILES_END] for name, known in numbers.items() if FILES_END in known}

    def taken_from(self, name: str, partition: Partition, start: int) -> int:
        """From which offset on a type lacks records: a process that died after its commit left it ahead (RULES E3)."""
        position = self.position(name, partition)
        if position is None or position <= start:
            return start
        known = self._logs[name].transaction(flow_key(self.job.name))
        if known is not None and known != self.settings_of(name):
            raise UserError(
                f"the job file was changed after a process died in the middle of a commit to type {name}",
                detail=f"its log has records of {partition} up to offset {position}, the job log those below {start}; "
                "with another job file other records may fit, and would be lost or written twice",
                hint="run the job once with the job file as it was then, and change it afterwards",
            )
        return position

    def settings_of(self, name: str) -> int:
        """Stands for all of the job file that decides which records become rows of a type (RULES E5)."""
        job, on = self.job, self.job.on
        policies = (on.bad_record, on.tombstone, on.new_column)
        kind = replace(self.export.types[name], rotation=None)
        return fingerprint(repr((job.decode, kind, self.export.route, self.export.days, job.columns, policies)))

    def routing(self) -> int:
        """Stands for what decides which type a record is of, whatever the order in the job file."""
        values = sorted((name, sorted(spec.values)) for name, spec in self.export.types.items())
        return fingerprint(repr((self.export.route, values, self.job.on.tombstone, self.job.decode.payload)))

    # columns

    def columns_of(self, name: str) -> pa.Schema | None:
        """The columns of a type's files; None while they are not known."""
        log = self._readable(name)
        return None if log is None else pa.schema([column for column in log.schema if column.name not in _PARTITIONS])

    def decoded_of(self, name: str) -> pa.Schema | None:
        """The fields of a type's records, as the job file spells them where it names them."""
        columns, stated = self.columns_of(name), self.export.types[name].schema
        if columns is None:
            return stated
        computed = {folded(column) for column in self.job.columns}
        read = pa.schema([column for column in columns if folded(column.name) not in computed])
        return read if stated is None else respelled(read, stated)

    def add_columns(self, name: str, decoded: pa.Schema) -> None:
        """Fix the columns that records of a type brought; those that another process fixed first stay as they are."""
        known = self.decoded_of(name)
        self._create(self.export.types[name], decoded if known is None else grown(known, decoded))

    def _create(self, spec: TypeSpec, decoded: pa.Schema) -> None:
        """Open the log of a type with at least these fields and the computed columns; create it if it is missing."""
        computed = [
            pa.field(column, output_type(expression, decoded)) for column, expression in self.job.columns.items()
        ]
        partitions = [(DAY_FOLDER, pa.date32()), *([(STAGED, pa.string())] if self.is_plain else [])]
        wanted = pa.schema([*decoded, *computed, *partitions])
        log = self.find_type_log(spec.name)
        if log is None or len(fit(log.schema, wanted, NewColumnPolicy.ADD, log.spec.path)):
            place = self.type_place(spec.name)
            log = open_or_create(place, self.job.name, wanted, NewColumnPolicy.ADD, self.environment)
            self._logs[spec.name] = log

    # types

    def agree_on_types(self) -> None:
        """Create the logs that are missing, and enter the routing and the types that the job log does not know yet."""
        state = self.state()
        self._refuse_lost_logs(state)
        self.refuse_unnamed_types(state)
        self.create_job_log()
        for spec in self.export.types.values():
            if self._readable(spec.name) is None and spec.name in self.unreadable:
                continue
            if (decoded := self.decoded_of(spec.name)) is not None:
                self._create(spec, decoded if spec.schema is None else grown(decoded, spec.schema))
        self.enter_types()

    def reopen(self, name: str) -> None:
        """Open the log of a type that failed once more; create it if that was not possible when the job started."""
        self._logs.pop(name, None)
        if self.find_type_log(name) is None and (decoded := self.decoded_of(name)) is not None:
            self._refuse_lost_logs(self.state())
            self._create(self.export.types[name], decoded)
            self.enter_types()

    def enter_types(self) -> None:
        """Let the job log know the types, and what routes records to them; a new type begins where the job is."""

        def decide() -> Change | None:
            state = self.known_state()
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
        log = self._readable(name)
        return 0 if log is None else fingerprint(str(log.handle.metadata().id))

    def refuse_unnamed_types(self, state: ExportState) -> None:
        unnamed = sorted(state.types.keys() - self.export.types.keys())
        if unnamed:
            raise UserError(
                f"the table has types that the job file does not name: {', '.join(unnamed)}",
                detail="this job file may be older than the one that added them",
                hint="start this process again with that job file; a type is retired with `values: []`",
            )

    def _refuse_rerouted(self, state: ExportState) -> None:
        """Records that were left to a type are recognised only by the routing under which they were counted."""
        lagging = sorted({name for _, here in state.current() for name in here.lags})
        if lagging and state.routing not in (None, self.routing()):
            raise UserError(
                "route, types or values of the job file changed while records wait for a type",
                detail=f"lagging: {', '.join(lagging)}; with other routes, records could be lost or written twice",
                hint="run the job to its end with the job file as it was (`penstock run --once`), and change it then",
            )

    def _refuse_lost_logs(self, state: ExportState) -> None:
        """A log that was lost or replaced would let records be written twice (RULES E6)."""
        if not state.partitions:
            for name, log in self.type_logs():
                if any(key.startswith(f"{self.job.name}/") for key in log.transactions()):
                    raise UserError(
                        f"the log of type {name} has positions of the job {self.job.name}, whose own log is missing",
                        detail="without the job log, records would be written again",
                        hint=LOST,
                    )
        for name in self.replaced_logs(state):
            raise UserError(
                f"the log of type {name} at {self.type_place(name).path} is not the one that the job wrote",
                detail="it was deleted or replaced; its records would be written again, or be missing",
                hint=LOST,
            )

    def replaced_logs(self, state: ExportState) -> list[str]:
        """The types whose logs are not those that the job wrote, or are gone."""
        entered = {name: log_id for name, log_id in state.types.items() if log_id and name in self.export.types}
        replaced = [name for name, log_id in entered.items() if self.log_id(name) != log_id]
        return [name for name in replaced if name not in self.unreadable]


_PARTITIONS = frozenset({DAY_FOLDER, STAGED})


def type_totals(logs: ExportLogs, partition: Partition) -> Totals:
    """What the logs of all types count of a partition; the job log counts the records that were read."""
    totals = [log.known_state([partition]).of(partition).totals for _, log in logs.type_logs()]
    names = ("written", "quarantined", "filtered", "replayed")
    return Totals(**{name: sum(getattr(of_type, name) for of_type in totals) for name in names})
