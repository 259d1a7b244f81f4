"""The dry run of a Delta table: nothing but its rows."""

from penstock.tables.single.preview import RowsPreview

open_preview = RowsPreview
