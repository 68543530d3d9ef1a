"""A real web server on loopback that misbehaves as it is told."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from scale_cl.streams.sources.source import Download


@dataclass
class Site:
    """What the server holds, how it answers, and what it was asked."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    script: list[str] = field(default_factory=list)  # one word a request; "well" when it has run out
    ranges: list[str | None] = field(default_factory=list)  # Range header of each request

    def offer(self, name: str, content: bytes, path: str | None = None, unpacks_to: str = "") -> Download:
        """Put a file on the site; what its publisher would say of it."""
        self.files[f"/{name}"] = content
        checksum = hashlib.md5(content).hexdigest()
        return Download(f"{self.address}/{name}", path or name, len(content), checksum, unpacks_to)


@contextlib.contextmanager
def serving() -> Iterator[Site]:
    """A site as long as the context lasts."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, site)

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()


def answer(handler: BaseHTTPRequestHandler, site: Site) -> None:
    """Answer one request by the next word of the script."""
    word = site.script.pop(0) if site.script else "well"
    wanted = handler.headers["Range"]
    site.ranges.append(wanted)
    content = site.files.get(handler.path)
    if word.isdecimal() or content is None:
        handler.send_error(int(word) if word.isdecimal() else 404)
        return
    if word == "hang up":
        handler.close_connection = True
        handler.connection.close()
        return
    start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and word != "ignore range" else 0
    if start >= len(content):
        handler.send_error(416)
        return
    body = content[start:]
    if word == "wrong bytes":
        body = bytes(b ^ 1 for b in body)
    if word == "shorter":
        body = body[: len(body) // 3]
    handler.send_response(206 if wanted and word != "ignore range" else 200)
    if wanted and word != "ignore range":
        shown = start + 1 if word == "wrong range" else start
        handler.send_header("Content-Range", f"bytes {shown}-{len(content) - 1}/{len(content)}")
    if word not in ("no length", "endless"):
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if word.startswith("cut"):
        body = body[: len(body) // 2]
    if word == "endless":
        body = body + b"more"
    with contextlib.suppress(OSError):
        handler.wfile.write(body)
    handler.close_connection = True
