"""A real HTTP server on this machine that can misbehave, and a machine without a network."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from fu_core.data import download


class FileServer:
    """Serves `files` (path -> bytes), with byte ranges unless told otherwise, and can break off in the middle."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []  # path and Range header of each request
        self.serve_ranges = True
        self.cut_after: list[int] = []  # for the next requests: send only so many bytes, then close
        self.refuse_with: list[int] = []  # for the next requests: answer with this status
        self.pause = 0.0  # seconds before every further 100,000 bytes
        self.url = ""


def _handler(server: FileServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            server.asked.append((self.path, wanted))
            if server.refuse_with or self.path not in server.files:
                self.send_error(server.refuse_with.pop(0) if server.refuse_with else 404)
                return
            content = server.files[self.path]
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.serve_ranges else 0
            if start and start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            body = content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            sent = body[: server.cut_after.pop(0)] if server.cut_after else body
            for begin in range(0, len(sent), 100_000):
                time.sleep(server.pause)
                self.wfile.write(sent[begin : begin + 100_000])

        def log_message(self, *arguments: object) -> None:
            """Silent."""

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(download, "CHUNK", 1000)  # so that a broken connection keeps a known number of bytes
    files = FileServer()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(files)) as httpd:
        files.url = f"http://127.0.0.1:{httpd.server_address[1]}/"
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield files
        httpd.shutdown()
        thread.join()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attempt to connect or to look up a name fails, as without a cable."""

    def unreachable(*arguments: object, **options: object) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
