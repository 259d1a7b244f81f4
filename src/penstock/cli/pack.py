"""`penstock pack`: this Python with Penstock as an archive that executors of a cluster unpack and run."""

from __future__ import annotations

import io
import os
import re
import string
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from importlib.metadata import Distribution, PackageNotFoundError
from json import dumps
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

import penstock
from penstock.cli.entry import submit
from penstock.errors import UserError

FOLDER = "penstock"
"""The name under which executors see the unpacked archive."""
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_PACKAGES = f"lib/{_VERSION}/site-packages"
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo", "ensurepip"})
"""Folders of the standard library that executors do not need."""
_LAUNCHER = f"""\
#!/bin/sh
home=$(dirname "$(dirname "$(readlink -f "$0")")")
export PYTHONHOME="$home" LD_LIBRARY_PATH="$home/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
exec "$home/bin/{_VERSION}" "$@"
"""
"""The interpreter finds its library and its modules wherever the archive was unpacked."""
_HDFS = "extra == 'hdfs'"
_NAME_CHARACTERS = string.ascii_letters + string.digits + "-_."
Content = tuple[Path, str]
"""A file, and its name in the archive."""


def pack(
    archive: Annotated[Path, typer.Argument(help="The archive to write.")] = Path("penstock.tar.gz"),
    json: Annotated[bool, typer.Option("--json", help="Print the settings as JSON.")] = False,
) -> None:
    """Pack this Python, Penstock and what it requires for the executors of a cluster.

    Prints the two Spark settings that a job file needs, and the same as a spark-submit command.
    """
    content = [*_interpreter(), *_library(), *_packages()]
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("packing"), BarColumn(), DownloadColumn())
    arriving = archive.with_name(f".{archive.name}.arriving")
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("packing", total=sum(path.stat().st_size for path, _ in content))
            with tarfile.open(arriving, "w:gz", compresslevel=3, dereference=True) as tar:
                launcher = tarfile.TarInfo("bin/python")
                launcher.size, launcher.mode = len(_LAUNCHER), 0o755
                tar.addfile(launcher, io.BytesIO(_LAUNCHER.encode()))
                for path, name in content:
                    tar.add(path, name, recursive=False)
                    progress.advance(task, path.stat().st_size)
        arriving.replace(archive)
    except OSError as error:
        hint = "name a file in a folder that exists and has space"
        raise UserError(f"{archive} cannot be written", detail=str(error), hint=hint) from error
    finally:
        arriving.unlink(missing_ok=True)
    size_bytes = archive.stat().st_size
    settings = {"spark.archives": f"{archive.absolute()}#{FOLDER}", "spark.pyspark.python": f"./{FOLDER}/bin/python"}
    if json:
        facts = {"archive": str(archive.absolute()), "size_bytes": size_bytes, "entry": submit.__file__}
        typer.echo(dumps({**facts, "conf": settings}, indent=2))
        return
    lines = [f"{archive}: {size_bytes / 1e6:,.0f} MB", "", "In the job file:", "", "spark:", "  conf:"]
    lines += [f'    {name}: "{value}"' for name, value in settings.items()]
    command = ["spark-submit --master MASTER", *(f"--conf {name}={value}" for name, value in settings.items())]
    command += [f"--conf spark.pyspark.driver.python={sys.executable}", f"{submit.__file__} run JOB"]
    typer.echo("\n".join([*lines, "", "Or without them in the job file:", "", " \\\n  ".join(command)]))


def _interpreter() -> Iterator[Content]:
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    yield base, f"bin/{_VERSION}"
    library = Path(sysconfig.get_config_var("LIBDIR") or "") / (sysconfig.get_config_var("INSTSONAME") or "")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and library.is_file():
        yield library, f"lib/{library.name}"


def _library() -> Iterator[Content]:
    """The standard library, without what only builds and tests need."""
    for variable in ("stdlib", "platstdlib"):
        root = Path(sysconfig.get_path(variable, vars={"base": sys.base_prefix, "platbase": sys.base_prefix}))
        yield from _files(root, f"lib/{_VERSION}", _LEFT_OUT | {item.name for item in root.glob("config-*")})
        if sysconfig.get_path("stdlib") == str(root):
            return


def _packages() -> Iterator[Content]:
    """Penstock from where it is imported, and what it requires, without the jars of Spark: every executor has some."""
    yield from _files(Path(penstock.__file__).parent, f"{_PACKAGES}/penstock", frozenset())
    for distribution in _required("penstock"):
        if distribution.files is None:
            hint = "install Penstock with pip or uv into a virtual environment, and run its `penstock pack`"
            raise UserError(f"the files of {distribution.name} are not listed", hint=hint)
        for file in distribution.files:
            path = Path(str(distribution.locate_file(file)))
            own_source = file.parts[0] == "penstock" or file.suffix in (".pth", ".pyc")
            if not (own_source or ".." in file.parts or file.parts[:2] == ("pyspark", "jars")) and path.is_file():
                yield path, f"{_PACKAGES}/{file.as_posix()}"


def _required(name: str) -> list[Distribution]:
    """A package and all that it requires, as installed; of extras only the one that tasks import."""
    installed: dict[str, Distribution] = {}
    names = [name]
    while names:
        folded = re.sub(r"[-_.]+", "-", names.pop()).lower()
        with suppress(PackageNotFoundError):
            if folded not in installed:
                installed[folded] = metadata.distribution(folded)
                required = [
                    text for text in installed[folded].requires or () if "extra ==" not in text or _HDFS in text
                ]
                names += [text[: len(text) - len(text.lstrip(_NAME_CHARACTERS))] for text in required]
    return list(installed.values())


def _files(root: Path, name: str, left_out: frozenset[str]) -> Iterator[Content]:
    """The files below a folder; `left_out` are folders directly in it."""
    for folder, subfolders, files in os.walk(root, followlinks=True):
        at_root = folder == str(root)
        subfolders[:] = [item for item in sorted(subfolders) if not (at_root and item in left_out)]
        place = name if at_root else f"{name}/{Path(folder).relative_to(root).as_posix()}"
        for file in files:
            path = Path(folder, file)
            if path.is_file() and path.suffix != ".pyc":
                yield path, f"{place}/{file}"
