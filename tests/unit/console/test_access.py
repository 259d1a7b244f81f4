"""Who may see and do what: roles, tokens, forms, hosts and headers."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from penstock.console.access import FAILED_LOGINS_MAX, Access, form_of, operating
from penstock.errors import UserError
from tests.support.console import HTML, console, csrf_of, state_of, watched

READ, OPERATE = "read-token-0123456789", "operate-token-0123456789"
REPLAY = "/jobs/orders/replay"


@operating("replay")
def replay(request: Request) -> Response:
    if form_of(request).get("fail"):
        raise UserError("nothing fits", hint="look again")
    return PlainTextResponse("replayed")


def with_tokens() -> Access:
    return Access(read_tokens={READ: "rita"}, operate_tokens={OPERATE: "olga"})


def with_action(client: TestClient) -> TestClient:
    client.app.router.routes.insert(0, Route("/jobs/{job}/replay", replay, methods=["POST"]))  # type: ignore[attr-defined]
    return client


def log_in(client: TestClient, token: str) -> int:
    return client.post("/login", data={"token": token}, headers={"origin": "http://127.0.0.1"}).status_code


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7080", "", "127.0.0.1.evil.example", "a b", "localhost@evil"]
)
def test_a_page_of_another_name_does_not_reach_a_console_on_loopback(tmp_path: Path, host: str) -> None:
    with console(tmp_path, watched(tmp_path)) as client:
        assert client.get("/", headers={"host": host}).status_code == 403
        for own in ("127.0.0.1:7080", "localhost", "[::1]:9"):
            assert client.get("/", headers={"host": own}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/nothing", "/static/console.css", "/login", "/live/x", "/jobs/orders"])
def test_every_answer_forbids_inline_scripts_frames_and_guessed_types(tmp_path: Path, path: str) -> None:
    with console(tmp_path, watched(tmp_path)) as client:
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"


def test_no_page_has_an_inline_script_or_style(tmp_path: Path) -> None:
    with console(tmp_path, watched(tmp_path)) as client:
        for path in ("/", "/jobs/orders", "/jobs/orders/settings", "/activity", "/login"):
            text = client.get(path).text
            assert " style=" not in text and "<style" not in text and " on" not in [tag[:3] for tag in text.split("<")]
            assert text.count("<script") == text.count("<script src=") == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "console.example"])
def test_another_address_than_loopback_needs_a_token(host: str) -> None:
    with pytest.raises(UserError) as error:
        Access(host)
    assert "--token-file" in error.value.hint
    with pytest.raises(UserError):
        Access(host, operate_locally=True, read_tokens={READ: "rita"})
    assert Access(host, read_tokens={READ: "rita"}).needs_login


def test_a_short_token_is_refused_and_a_password_needs_tls() -> None:
    with pytest.raises(UserError):
        Access("0.0.0.0", read_tokens={"password1": "rita"})
    assert Access("0.0.0.0", read_tokens={"password1": "rita"}, tls=True).cookie.startswith("__Host-")


def test_without_a_session_browsers_are_sent_to_the_login_and_scripts_are_refused(tmp_path: Path) -> None:
    with console(tmp_path, watched(tmp_path), access=with_tokens()) as client:
        for path in ("/", "/jobs/orders", "/jobs/orders/settings", "/activity", "/live"):
            assert client.get(path, follow_redirects=False).headers["location"] == "/login"
            assert client.get(path, headers={"accept": "*/*"}).status_code == 401
        assert "orders" not in client.get("/login").text
        assert client.get("/", headers={"authorization": f"Bearer {READ}"}).status_code == 200
        assert client.get("/", headers={"accept": "*/*", "authorization": f"Bearer {READ}x"}).status_code == 401


def test_a_right_token_opens_a_session_that_scripts_cannot_read_and_logging_out_ends_it(tmp_path: Path) -> None:
    with console(tmp_path, watched(tmp_path), access=with_tokens()) as client:
        answer = client.post("/login", data={"token": READ}, follow_redirects=False)
        assert "HttpOnly; SameSite=Strict" in answer.headers["set-cookie"] and READ not in answer.headers["set-cookie"]
        assert client.get("/jobs/orders").status_code == 200
        client.post("/logout")
        assert client.get("/", follow_redirects=False).status_code == 303


def test_over_tls_cookies_are_secure_also_the_one_that_ends_a_session(tmp_path: Path) -> None:
    access = Access(read_tokens={"password": "rita"}, tls=True)
    with console(tmp_path, watched(tmp_path), access=access) as client:
        for path, form in (("/login", {"token": "password"}), ("/logout", {})):
            answer = client.post(path, data=form, follow_redirects=False)
            assert answer.headers["set-cookie"].startswith("__Host-") and "; Secure" in answer.headers["set-cookie"]
            assert "max-age=" in answer.headers["strict-transport-security"]


def test_forged_and_foreign_cookies_open_no_session(tmp_path: Path) -> None:
    foreign = with_tokens()
    with console(tmp_path, watched(tmp_path), access=with_tokens()) as client:
        own = state_of(client).access
        good = own.new_cookie(own.login(READ)[0], "rita")
        forged = [
            good.replace("read", "operate"),
            good[:-1],
            foreign.new_cookie(*foreign.login(OPERATE)),
            "",
            ".",
            "a.b.c.d.e",
            "é",
        ]
        for cookie in forged:
            assert own.session(cookie, "127.0.0.1") is None
        assert own.session(good, "127.0.0.1") is not None


def test_after_many_wrong_tokens_even_the_right_one_has_to_wait(tmp_path: Path) -> None:
    with console(tmp_path, watched(tmp_path), access=with_tokens()) as client:
        assert {log_in(client, f"wrong-{number}") for number in range(FAILED_LOGINS_MAX)} == {401}
        assert log_in(client, READ) == 429


def test_an_action_needs_the_role_the_token_of_the_form_and_a_confirmation_and_is_recorded(tmp_path: Path) -> None:
    with console(tmp_path, watched(tmp_path), access=with_tokens()) as client:
        with_action(client)
        assert client.post(REPLAY, data={"reason": "x"}).status_code == 403
        log_in(client, READ)
        assert client.post(REPLAY, data={"reason": "x"}).status_code == 403
        client.post("/logout")
        log_in(client, OPERATE)
        assert client.post(REPLAY, data={"csrf": "0" * 64, "confirmed": "yes"}).status_code == 403
        assert client.post(REPLAY, data={"confirmed": "yes"}).status_code == 403
        assert client.get(REPLAY).status_code == 405
        cookie = client.cookies[state_of(client).access.cookie]
        session = state_of(client).access.session(cookie, "testclient")
        assert session is not None
        asked = client.post(REPLAY, data={"csrf": session.csrf, "reason": "<b>bad</b>"})
        assert "Replay?" in asked.text and "&lt;b&gt;bad&lt;/b&gt;" in asked.text
        assert not state_of(client).history.notes("action")
        form = {"csrf": csrf_of(asked.text), "reason": "bad", "confirmed": "yes"}
        assert client.post(REPLAY, data=form).text == "replayed"
        [note] = state_of(client).history.notes("action")
        assert (note.job, note.text, note.detail) == ("orders", "replay", "reason bad")
        assert note.who.startswith("olga from ")
        assert client.post(REPLAY, data={**form, "fail": "1"}).status_code == 422
        assert state_of(client).history.notes("action")[0].text == "replay failed"


def test_a_form_of_another_site_is_refused(tmp_path: Path) -> None:
    with console(tmp_path, watched(tmp_path), access=Access(operate_locally=True)) as client:
        with_action(client)
        client.get("/")
        session = state_of(client).access.session(client.cookies[state_of(client).access.cookie], "x")
        assert session is not None and session.operates
        form = {"csrf": session.csrf, "confirmed": "yes"}
        for origin in ("https://evil.example", "null", "http://127.0.0.1:99"):
            assert client.post(REPLAY, data=form, headers={"origin": origin}).status_code == 403
        assert client.post(REPLAY, data=form, headers={"origin": "http://127.0.0.1"}).status_code == 200


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a=1&" * 200, b'{"csrf": 1}'])
def test_a_body_that_is_not_a_form_is_refused(tmp_path: Path, content: bytes) -> None:
    kind = "application/json" if content.startswith(b"{") else "application/x-www-form-urlencoded"
    with console(tmp_path, watched(tmp_path), access=Access(operate_locally=True)) as client:
        answer = with_action(client).post(REPLAY, content=content, headers={**HTML, "content-type": kind})
        assert 400 <= answer.status_code < 500


def test_a_large_body_and_one_without_a_length_are_not_read(tmp_path: Path) -> None:
    with console(tmp_path, watched(tmp_path), access=Access(operate_locally=True)) as client:
        assert with_action(client).post(REPLAY, content=b"x" * 100_000).status_code == 413
        assert client.post(REPLAY, content=iter([b"x"] * 10)).status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "/static/../access.py",
        "/static/%2e%2e/access.py",
        "/static/..%2faccess.py",
        "/static//etc/passwd",
        "/static/%2e%2e%2f%2e%2e%2fpyproject.toml",
        "/jobs/..%2f..%2fetc",
        "/jobs/%00",
    ],
)
def test_no_path_leads_out_of_the_console(tmp_path: Path, path: str) -> None:
    with console(tmp_path, watched(tmp_path)) as client:
        assert client.get(path).status_code == 404
