"""The `penstock wal` commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.errors import UserError
from penstock.logs.wal.client import WalClient
from penstock.logs.wal.records import WalRefusedError
from tests.support.wal import served

TOPIC = "orders"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path / "wal") as server:
        server.store.create_topic(TOPIC, 1)
        yield server.url


def wal(*arguments: str, stdin: bytes = b"") -> Result:
    done = CliRunner().invoke(app, ["wal", *arguments], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_server_with_a_token_is_used_with_a_token_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret-1\n")
    with served(tmp_path / "wal", tokens=["secret-1"]) as server:
        with_token = ("--token-file", str(file))
        wal("create", server.url, TOPIC, *with_token)
        with WalClient(server.url, "secret-1") as client:
            client.append(TOPIC, [b'{"id": 1}'])
        assert "[0, 1)" in wal("status", server.url, *with_token).stdout
        with pytest.raises(WalRefusedError, match="token"):
            wal("status", server.url)
        file.write_text("two tokens\n")
        with pytest.raises(UserError, match="invalid token"):
            wal("status", server.url, *with_token)
        with pytest.raises(UserError, match="cannot be read"):
            wal("serve", "--folder", str(tmp_path / "other"), "--token-file", str(tmp_path / "nowhere"))


def test_topics_jobs_and_lags_are_shown_and_a_job_is_unregistered(url: str) -> None:
    assert "has 3 partitions" in wal("create", url, "others", "--partitions", "3").stdout
    with WalClient(url) as client:
        client.append(TOPIC, [b"a", b"b", b"c"])
        client.report("shop", {client.partitions(TOPIC)[0].partition: 1})
    assert "orders/0: [0, 3), " in (text := wal("status", url).stdout) and "shop lags 2" in text
    assert json.loads(wal("status", url, "--json").stdout)[0]["positions"] == {"shop": 1}
    wal("forget", url, "shop")
    assert "no job is registered" in wal("status", url).stdout
    with pytest.raises(WalRefusedError, match="no job"):
        wal("forget", url, "shop")


def test_invalid_wal_arguments_are_refused(url: str, tmp_path: Path) -> None:
    for arguments in (
        ("create", "localhost", TOPIC),
        ("serve", "--folder", str(tmp_path / "other"), "--listen", "7070"),
        ("serve", "--folder", str(tmp_path / "other"), "--retention", "soon"),
        ("serve", "--folder", str(tmp_path / "wal")),
    ):
        with pytest.raises(UserError):
            wal(*arguments)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "wal.example"])
def test_an_open_address_without_a_token_is_refused_unless_a_flag_allows_it(tmp_path: Path, host: str) -> None:
    with pytest.raises(UserError) as raised:
        wal("serve", "--folder", str(tmp_path / "other"), "--listen", f"{host}:0")
    assert "--without-token" in raised.value.hint and not (tmp_path / "other").exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost"])
def test_a_loopback_address_needs_no_token(tmp_path: Path, host: str) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(OSError, match="lock"):
        wal("serve", "--folder", str(tmp_path), "--listen", f"{host}:0")


def test_a_certificate_needs_its_key_and_must_be_valid(tmp_path: Path) -> None:
    file = tmp_path / "certificate.pem"
    file.write_text("none")
    serve = ("serve", "--folder", str(tmp_path / "other"), "--listen", "127.0.0.1:0", "--tls-certificate", str(file))
    for options in ((), ("--tls-key", str(file))):
        with pytest.raises(UserError):
            wal(*serve, *options)
