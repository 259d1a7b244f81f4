"""Finds a Java that is new enough, or says what to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from penstock.errors import UserError

JAVA_MAJOR_MIN = 17
_VERSION_SECONDS_MAX = 60
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HINT = f"install a Java runtime of version {JAVA_MAJOR_MIN} or later and put it on PATH, or set JAVA_HOME to it"


def java_command() -> Path:
    """The `java` of JAVA_HOME, else of PATH, once its version is known to be enough."""
    command = _find_java()
    major = _major_version(command)
    if major < JAVA_MAJOR_MIN:
        raise UserError(f"Java {JAVA_MAJOR_MIN} or later is needed", detail=f"{command} is Java {major}", hint=_HINT)
    return command


def parse_major(version_text: str) -> int | None:
    """The major version in what `java -version` printed; `1.8` counts as 8."""
    found = _VERSION.search(version_text)
    return None if found is None else int(found[1])


def _find_java() -> Path:
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        command = Path(java_home) / "bin" / "java"
        if not command.exists():
            raise UserError("JAVA_HOME holds no Java", detail=f"{command} does not exist", hint=_HINT)
        return command
    found = shutil.which("java")
    if found is None:
        raise UserError("Java was not found", detail="neither JAVA_HOME nor PATH leads to it", hint=_HINT)
    return Path(found)


def _major_version(command: Path) -> int:
    try:
        answer = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=_VERSION_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError("Java does not run", detail=f"{command}: {error}", hint=_HINT) from error
    text = answer.stderr + answer.stdout
    major = parse_major(text)
    if major is None:
        raise UserError("the version of Java could not be read", detail=f"{command} said: {text.strip()}", hint=_HINT)
    return major
