"""Files of these tables have a few rows: without this all would be rewritten, and none marked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.tables.keyed import merger


@pytest.fixture(autouse=True, scope="package")
def rows_are_marked() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merger, "REWRITE_SHARE", 1.0)
        yield
