"""`${env:NAME}` and `${file:PATH}` inside the texts of a job file; `$${` stands for a plain `${`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from penstock.job.faults import RefusedError, Secret

REFERENCE_FILE_BYTES_MAX = 1024 * 1024
_PART = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<body>[^{}]*)\}|(?P<open>\$\{)")
_WAYS = "write ${env:NAME} or ${file:PATH}, or $${ for a plain ${"


def resolve(text: str, env: Mapping[str, str], folder: Path) -> tuple[str, list[RefusedError]]:
    """Fill in the references of a text: a `Secret` where there was one, and a fault for each that is missing."""
    faults: list[RefusedError] = []
    referred = False

    def fill(part: re.Match[str]) -> str:
        nonlocal referred
        if part["escape"]:
            return "${"
        referred = True
        try:
            return _value(part["body"], env, folder)
        except RefusedError as fault:
            faults.append(fault)
            return ""

    filled = _PART.sub(fill, text)
    return (Secret(filled) if referred else filled), faults


def _value(body: str | None, env: Mapping[str, str], folder: Path) -> str:
    if body is None:
        raise RefusedError("a reference is opened by ${ and not closed", _WAYS)
    kind, colon, name = body.partition(":")
    if kind not in ("env", "file") or not colon or not name.strip():
        raise RefusedError(f"${{{body}}} is no reference", _WAYS)
    return _variable(name.strip(), env) if kind == "env" else _file_text(name.strip(), folder)


def _variable(name: str, env: Mapping[str, str]) -> str:
    value = env.get(name)
    if value is None:
        raise RefusedError(f"environment variable {name} is not set", f"set {name} before the start")
    return value


def _file_text(name: str, folder: Path) -> str:
    try:
        with (folder / name).open("rb") as file:
            content = file.read(REFERENCE_FILE_BYTES_MAX + 1)
        if len(content) > REFERENCE_FILE_BYTES_MAX:
            raise RefusedError(f"file {name} is larger than 1 MiB", "a secret is a short text")
        return content.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        # The error would quote the content: it must not be chained.
        raise RefusedError(f"file {name} is not UTF-8") from None
    except OSError as error:
        raise RefusedError(f"file {name} cannot be read ({error.strerror or type(error).__name__})") from None
    except ValueError as error:
        if isinstance(error, RefusedError):
            raise
        raise RefusedError(f"{name!r} is no file name") from None
