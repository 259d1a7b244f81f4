"""The formats in which rows are published: each turns a table of rows into records, in the order of the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from penstock.publish.formats.avro import avro_records
from penstock.publish.formats.json_rows import json_records
from penstock.publish.formats.opentsdb import opentsdb_records
from penstock.publish.output import OutputRecord
from penstock.publish.spec import PublishFormat

Encode = Callable[[pa.Table], list[OutputRecord]]


ENCODERS: Mapping[PublishFormat, Encode] = {
    "opentsdb": opentsdb_records,
    "json": json_records,
    "avro": avro_records,
}
