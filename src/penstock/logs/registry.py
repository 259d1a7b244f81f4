"""The one place that names every kind of log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.job.loader import Logs
from penstock.job.spec import JobSpec, KafkaLogSpec
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.settings import complete_kafka
from penstock.logs.log import Log
from penstock.logs.wal.log import WalLog, WalLogSpec, complete_wal

OpenLog = Callable[[JobSpec], Log]

SPECS: Logs = {KafkaLogSpec: complete_kafka, WalLogSpec: complete_wal}
"""What a job file may state under `log:`, with the checks of each section."""
LOGS: dict[type, Callable[[Any], Log]] = {KafkaLogSpec: KafkaLog, WalLogSpec: WalLog}
"""How the log of a job file's `log:` section is opened, by the class of its spec."""


def open_log(job: JobSpec) -> Log:
    """The log of a job."""
    return LOGS[type(job.log)](job.log)
