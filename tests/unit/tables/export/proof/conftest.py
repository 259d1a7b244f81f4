"""The root that the tests of `verify` damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export_root import ExportRoot, filled


@pytest.fixture
def root(tmp_path: Path) -> ExportRoot:
    return filled(tmp_path)
