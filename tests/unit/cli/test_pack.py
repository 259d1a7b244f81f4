"""What `penstock pack` puts into its archive: a Python that runs wherever it is unpacked."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import pack
from penstock.cli.app import app
from penstock.errors import UserError

PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def test_an_archive_holds_penstock_and_what_it_requires_and_neither_jars_nor_editable_links() -> None:
    names = [name for _, name in pack._packages()]
    assert len(names) == len(set(names))
    assert f"{PACKAGES}/penstock/cli/pack.py" in names
    packages = {name.removeprefix(f"{PACKAGES}/").split("/")[0] for name in names}
    assert {"pyarrow", "polars", "deltalake", "confluent_kafka", "pyspark", "py4j", "dateutil"} <= packages
    assert "pytest" not in packages
    assert not [name for name in names if name.endswith((".pth", ".pyc", ".jar"))]
    assert any(name.endswith("METADATA") and "/penstock-" in name for name in names)


def test_an_unpacked_archive_runs_on_its_own_and_has_no_entry_that_spark_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the packages, which take a quarter of a minute."""
    module = tmp_path / "packed.py"
    module.touch()
    monkeypatch.setattr(pack, "_packages", lambda: iter([(module, f"{PACKAGES}/packed.py")]))
    archive = tmp_path / "penstock.tar.gz"
    done = CliRunner().invoke(app, ["pack", str(archive)])
    assert done.exit_code == 0, done.output
    assert f"spark.archives={archive}#penstock" in done.output
    assert 'spark.pyspark.python: "./penstock/bin/python"' in done.output
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        tar.extractall(tmp_path / "unpacked", filter="data")
    assert all(member.isfile() and not member.name.startswith((".", "/")) for member in members)
    code = "import encodings, packed, ssl, sqlite3, sys; print(sys.prefix, encodings.__file__, packed.__file__)"
    command = [str(tmp_path / "unpacked" / "bin" / "python"), "-c", code]
    places = subprocess.run(command, capture_output=True, text=True, env={}, check=True).stdout.split()
    assert all(place.startswith(str(tmp_path / "unpacked")) for place in places)


def test_an_archive_that_cannot_be_written_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "_packages", lambda: iter(()))
    monkeypatch.setattr(pack, "_library", lambda: iter(()))
    with pytest.raises(UserError) as raised:
        pack.pack(tmp_path / "nowhere" / "penstock.tar.gz")
    assert "folder that exists" in raised.value.hint
