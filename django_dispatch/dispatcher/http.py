"""The dispatcher's HTTP: answers scrapers and probes from what the loop knows. On the dispatcher's loop.

Whoever connects costs next to nothing: a request is a few lines, read within seconds, and when there are too many
connections the oldest goes. A connection carries one request.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

LARGEST_REQUEST = 16_384  # bytes of request line and headers
READ_SECONDS = 5.0
WRITE_SECONDS = 10.0
MOST_CONNECTIONS = 64
RETRY_SECONDS = 5.0  # between two tries to have a port that is taken
PLAIN_TEXT = "text/plain; charset=utf-8"

logger = logging.getLogger("django_dispatch.http")


class Request(NamedTuple):
    """What was asked for: the path without its query, and the headers by their names in lower case."""

    path: str
    headers: Mapping[str, str]


class Response(NamedTuple):
    """What is answered."""

    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN_TEXT


Route = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Serves ``routes``: a path, and who answers it. An answer must not wait for anything without a deadline."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self.routes: dict[str, Route] = {}
        self.is_serving = False
        self._connections: dict[asyncio.StreamWriter, None] = {}
        """The oldest first."""

    async def run(self) -> None:
        """Serve for ever. A port that is taken is told of once, and tried again until it is free."""
        has_warned = False
        while True:
            try:
                server = await asyncio.start_server(self._on_connection, self._host, self._port, limit=LARGEST_REQUEST)
            except OSError as error:
                if not has_warned:
                    logger.warning(
                        "Metrics and health cannot be served on %s port %s: %s. The dispatcher works without; it tries"
                        " again every %g s. Give each dispatcher of a host a --metrics-port of its own, or 0 for none.",
                        self._host,
                        self._port,
                        _why(error),
                        RETRY_SECONDS,
                    )
                has_warned = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            logger.info("Metrics and health are served on http://%s:%s.", self._shown_host(), self._port)
            async with server:
                self.is_serving = True
                try:
                    await asyncio.Event().wait()  # serve_forever() would wait, at its end, for whoever is connected
                finally:
                    self.is_serving = False
                    self._keep_at_most(0)

    def _shown_host(self) -> str:
        return f"[{self._host}]" if ":" in self._host else self._host

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._keep_at_most(MOST_CONNECTIONS - 1)
        self._connections[writer] = None
        try:
            async with asyncio.timeout(READ_SECONDS):
                head = await _read_head(reader)
            if head is not None:
                async with asyncio.timeout(WRITE_SECONDS):
                    writer.write(await self._answer(head))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # it is gone, or too slow, or we end
        finally:
            self._connections.pop(writer, None)
            writer.transport.abort()

    def _keep_at_most(self, most: int) -> None:
        """Cut off who has been here for longest, if there are more."""
        while len(self._connections) > most:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        method, request = _parse(head)
        if request is None:
            response = _error(HTTPStatus.BAD_REQUEST)
        elif method not in ("GET", "HEAD"):
            response = _error(HTTPStatus.METHOD_NOT_ALLOWED)
        elif request.path not in self.routes:
            response = _error(HTTPStatus.NOT_FOUND, f"There are {', '.join(sorted(self.routes))}.")
        else:
            try:
                response = await self.routes[request.path](request)
            except Exception:
                logger.exception("%s could not be answered.", request.path)
                response = _error(HTTPStatus.INTERNAL_SERVER_ERROR, "See the dispatcher's log.")
        return _encode(response, has_body=method != "HEAD")


def _why(error: OSError) -> str:
    """What the kernel said, without what asyncio adds."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


async def _read_head(reader: asyncio.StreamReader) -> bytes | None:
    """Return request line and headers; None if they never end, or are too long (then no answer could be read)."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None


def _parse(head: bytes) -> tuple[str, Request | None]:
    """Return the method, and the request if it is one."""
    line, *lines = head.decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[1].startswith("/") or not words[2].startswith("HTTP/1."):
        return "", None
    headers = {}
    for text in filter(None, lines):
        name, colon, value = text.partition(":")
        if not colon:
            return "", None
        headers[name.strip().lower()] = value.strip()
    return words[0], Request(words[1].partition("?")[0], headers)


def _error(status: HTTPStatus, more: str = "") -> Response:
    return Response(status, f"{status.value} {status.phrase}. {more}".strip().encode() + b"\n")


def _encode(response: Response, *, has_body: bool) -> bytes:
    status, body, content_type = response
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if has_body else b"")
