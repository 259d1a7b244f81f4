"""A real S3 server on loopback. python -m tests.support.s3_server: prints its port and runs until its input ends."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.server import ThreadedMotoServer
from werkzeug.serving import make_server


class S3Server(ThreadedMotoServer):
    """Moto's server with conditional puts that are atomic, as those of S3: one write at a time."""

    def __init__(self) -> None:
        super().__init__(ip_address="127.0.0.1", port=0, verbose=False)

    def _server_entry(self) -> None:
        app, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

        def one_write_at_a_time(environ: dict[str, Any], start_response: Any) -> Any:
            if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
                return app(environ, start_response)
            with lock:
                return app(environ, start_response)

        self._server = make_server(
            self._ip_address, self._port, one_write_at_a_time, threaded=True, request_handler=MotoRequestHandler
        )
        self._server_ready_event.set()
        self._server.serve_forever()


def main() -> None:
    logging.disable(logging.CRITICAL)
    server = S3Server()
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
