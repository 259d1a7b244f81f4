"""`penstock wal` as a person meets it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.cli.wal import BYTES_PER_APPEND
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


def values(url: str) -> list[bytes | None]:
    with WalClient(url) as client:
        end = client.partitions(TOPIC)[0].end
        return [record.value for _, records in client.read(TOPIC, 0, 0, end) for record in records]


def test_a_file_of_lines_is_sent_in_several_appends_and_its_repeat_adds_nothing(url: str, tmp_path: Path) -> None:
    count = 3 * BYTES_PER_APPEND // len('{"id": 10000}\n')
    file = tmp_path / "rows.json"
    file.write_text("".join(f'{{"id": {number}}}\n' for number in range(count)))
    for told in ("", f", {count} of them by an earlier run"):
        shown = wal("append", url, TOPIC, str(file), "--key", "load-7").stdout
        assert shown == f"{count} records appended to {TOPIC}{told}\n"
    assert values(url) == [b'{"id": %d}' % number for number in range(count)]
    answers = list(map(json.loads, wal("append", url, TOPIC, str(file), "--json").stdout.splitlines()))
    assert len(answers) == 3 and sum(answer["end"] - answer["start"] for answer in answers) == count


@pytest.mark.parametrize(
    ("format_", "stdin", "expected"),
    [
        ("json", b'[{"id": 1},\n {"id": 2}]', [b'{"id": 1}', b'{"id": 2}']),
        ("json", b'\n{"id": 1}', [b'{"id": 1}']),
        ("lines", b"one\ntwo", [b"one", b"two"]),
    ],
)
def test_standard_input_in_each_format(url: str, format_: str, stdin: bytes, expected: list[bytes]) -> None:
    wal("append", url, TOPIC, "--format", format_, stdin=stdin)
    assert values(url) == expected


def test_a_server_with_a_token_is_used_with_a_token_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret-1\n")
    with served(tmp_path / "wal", tokens=["secret-1"]) as server:
        known = ("--token-file", str(file))
        wal("create", server.url, TOPIC, *known)
        wal("append", server.url, TOPIC, *known, stdin=b'{"id": 1}\n')
        assert "[0, 1)" in wal("status", server.url, *known).stdout
        with pytest.raises(WalRefusedError, match="token"):
            wal("status", server.url)
        file.write_text("two words\n")
        with pytest.raises(UserError, match="no token"):
            wal("status", server.url, *known)
        with pytest.raises(UserError, match="cannot be read"):
            wal("serve", "--folder", str(tmp_path / "other"), "--token-file", str(tmp_path / "nowhere"))


def test_topics_jobs_and_lags_are_shown_and_a_job_is_forgotten(url: str) -> None:
    assert "has 3 partitions" in wal("create", url, "others", "--partitions", "3").stdout
    wal("append", url, TOPIC, "--format", "lines", stdin=b"a\nb\nc\n")
    with WalClient(url) as client:
        client.report("shop", {client.partitions(TOPIC)[0].partition: 1})
    assert "orders/0: [0, 3), " in (text := wal("status", url).stdout) and "shop lags 2" in text
    assert json.loads(wal("status", url, "--json").stdout)[0]["positions"] == {"shop": 1}
    wal("forget", url, "shop")
    assert "no job is registered" in wal("status", url).stdout
    with pytest.raises(WalRefusedError, match="no job"):
        wal("forget", url, "shop")


def test_what_is_wrong_is_said(url: str, tmp_path: Path) -> None:
    for arguments in (
        ("append", url, TOPIC, "--format", "xml"),
        ("append", "localhost", TOPIC),
        ("serve", "--folder", str(tmp_path / "other"), "--listen", "7070"),
        ("serve", "--folder", str(tmp_path / "other"), "--retention", "soon"),
        ("serve", "--folder", str(tmp_path / "wal")),
    ):
        with pytest.raises(UserError):
            wal(*arguments)
    assert wal("append", url, TOPIC, str(tmp_path / "none")).exit_code == 2
    with pytest.raises(WalRefusedError):
        wal("append", url, TOPIC, stdin=b'{"id": 1}\nbroken\n')
    assert values(url) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "wal.example"])
def test_an_open_address_without_a_token_is_refused_unless_a_flag_allows_it(tmp_path: Path, host: str) -> None:
    with pytest.raises(UserError) as raised:
        wal("serve", "--folder", str(tmp_path / "other"), "--listen", f"{host}:0")
    assert "--without-token" in raised.value.hint and not (tmp_path / "other").exists()


def test_a_certificate_needs_its_key_and_has_to_be_one(tmp_path: Path) -> None:
    file = tmp_path / "certificate.pem"
    file.write_text("none")
    serve = ("serve", "--folder", str(tmp_path / "other"), "--listen", "127.0.0.1:0", "--tls-certificate", str(file))
    for options in ((), ("--tls-key", str(file))):
        with pytest.raises(UserError):
            wal(*serve, *options)
