"""The wheel is enough: it is installed with its own dependencies only, away from the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.pages import EXAMPLES, ROOT

ALL_VERBS = """
from penstock.cli.app import VERBS, LazyVerb
for name in VERBS:
    LazyVerb(name).load()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel; what the wheel depends on is linked into it, without extras."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    [wheel] = folder.glob("penstock-*.whl")
    venv.create(folder / "environment", symlinks=True)
    [packages] = (folder / "environment" / "lib").glob("python*/site-packages")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    subprocess.run([*uv, "--python", folder / "environment" / "bin" / "python", wheel], check=True)
    for item in dependencies(next(iter(distributions(name="penstock", path=[str(packages)])))).values():
        for name in {path.parts[0] for path in item.files or () if path.parts[0] != ".."}:
            if not (packages / name).exists():
                (packages / name).symlink_to(str(item.locate_file(name)))
    return folder / "environment"


def dependencies(of: Distribution) -> dict[str, Distribution]:
    """All distributions that one needs, by name, without its extras."""
    result: dict[str, Distribution] = {}
    waiting = [of]
    while waiting:
        for text in waiting.pop().requires or ():
            requirement = Requirement(text)
            needed = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
            )
            if needed and requirement.name not in result:
                result[requirement.name] = distribution(requirement.name)
                waiting.append(result[requirement.name])
    return result


def run(environment: Path, folder: Path, *words: str, program: str = "penstock", **variables: str) -> tuple[int, str]:
    """The exit code and the output of a command in an environment that knows nothing of the repository."""
    clean = {"HOME": str(folder), "PATH": os.environ["PATH"], **variables}
    done = subprocess.run(
        [environment / "bin" / program, *words], cwd=folder, env=clean, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_installed_wheel_has_every_command_and_reads_job_files(environment: Path, tmp_path: Path) -> None:
    assert run(environment, tmp_path, "--version") == (0, f"penstock {distribution('penstock').version}\n")
    assert run(environment, tmp_path, "-c", ALL_VERBS, program="python") == (0, "")
    job = tmp_path / "job.yaml"
    job.write_text((EXAMPLES / "delta" / "job.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    code, text = run(environment, tmp_path, "check", "job.yaml", KAFKA_BROKERS="localhost:9092")
    assert code == 0, text


def test_a_table_on_hdfs_names_the_extra_that_it_needs(environment: Path, tmp_path: Path) -> None:
    opening = "from penstock.storage import open_storage; open_storage('hdfs://names/lake/web', {})"
    code, text = run(environment, tmp_path, "-c", opening, program="python")
    assert code == 1
    assert "UserError: hdfs://names/lake/web: the package of HDFS is not installed" in text
    assert "pip install 'penstock[hdfs]'" in text


def test_without_java_the_error_names_the_version_and_where_to_put_it(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    code, text = run(environment, tmp_path, "broker", "start", PATH=str(tmp_path / "bin"))
    assert code == 2, text
    assert "version 17" in text and "JAVA_HOME" in text
