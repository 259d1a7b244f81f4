"""The HTTP endpoint of a running process: its metrics, whether it runs, and whether its jobs make progress."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from penstock import events
from penstock.errors import UserError
from penstock.events import Event
from penstock.job.spec import ClaimsSpec, JobSpec

LOOPBACK = "127.0.0.1"
REQUEST_SECONDS_MAX = 10.0
POLL_SECONDS = 0.1
TEXT = "text/plain; charset=utf-8"


class Readiness:
    """Whether a job makes progress: its last round succeeded, and that was not long ago."""

    def __init__(self, job: JobSpec, now: Callable[[], float] = time.monotonic) -> None:
        self._job = job.name
        self._now = now
        # A round may wait for a Spark job.
        self._round_seconds_max = (job.claims or ClaimsSpec()).work_timeout_seconds
        self._done_at: float | None = None
        self._problem = "no round has succeeded yet"

    def event(self, event: Event) -> None:
        match event:
            case events.RoundDone() | events.JobStopped():
                self._done_at, self._problem = self._now(), ""
            case events.Retrying(reason) | events.JobFailed(_, reason) | events.JobCrashed(_, reason):
                self._problem = reason

    @property
    def problem(self) -> str:
        """Why the job makes no progress; empty if it does."""
        silent_seconds = self._now() - self._done_at if self._done_at is not None else 0.0
        if not self._problem and silent_seconds > self._round_seconds_max:
            return f"{self._job}: no round has ended for {silent_seconds:.0f} s"
        return f"{self._job}: {self._problem}" if self._problem else ""


@contextmanager
def served(host: str, port: int, registry: CollectorRegistry, jobs: Sequence[Readiness]) -> Iterator[None]:
    """Answer while the block runs."""

    def answer(path: str) -> tuple[int, str, bytes]:
        match path.partition("?")[0]:
            case "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
            case "/healthz":
                return 200, TEXT, b"ok\n"
            case "/readyz":
                problems = [job.problem for job in jobs if job.problem]
                body = "\n".join(problems or ["ok"])
                return 503 if problems else 200, TEXT, f"{body}\n".encode()
            case _:
                return 404, TEXT, b"not found\n"

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS_MAX

        def do_GET(self) -> None:
            status, kind, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise UserError(f"cannot serve metrics on {host}, port {port}", detail=str(error)) from error
    thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
