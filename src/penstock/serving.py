"""Where a server listens, and files with the tokens that it accepts."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from penstock.errors import UserError

PORT_MAX = 65_535


def host_and_port(option: str, text: str, default_host: str = "") -> tuple[str, int]:
    """The parts of HOST:PORT, for an option of that name; with a default host the port alone is enough."""
    address, colon, port = text.rpartition(":")
    host = address.strip("[]") if colon else default_host
    if not host or not port.isdecimal() or int(port) > PORT_MAX:
        hint = "write PORT or HOST:PORT, as in 127.0.0.1:9400" if default_host else "write HOST:PORT"
        raise UserError(f"{option}: invalid address {text!r}", hint=hint)
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this computer reaches a server that listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_token(text: str) -> bool:
    """Whether a header can carry a text as a token."""
    return text.isascii() and text.isprintable() and bool(text) and " " not in text


def read_tokens(option: str, path: Path) -> list[str]:
    """The tokens of a file, one per line."""
    try:
        tokens = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option}: {path} cannot be read", detail=str(error)) from None
    if not tokens or not all(map(is_token, tokens)):
        raise UserError(f"{option}: {path} is empty or has an invalid token", hint="one per line, no spaces")
    return tokens
