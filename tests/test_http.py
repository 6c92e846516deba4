"""The dispatcher's HTTP server, in this process."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from http import HTTPStatus

import pytest

from django_dispatch.dispatcher import http
from django_dispatch.dispatcher.http import HttpServer, Request, Response
from tests.kit.scrape import free_port


async def ask(port: int, text: str) -> tuple[bytes, bytes]:
    """Send a request; return head and body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.replace("\n", "\r\n").encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head, body


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while True:
            if is_so():
                return
            await asyncio.sleep(0.01)


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Wait until there is nothing more to read; return whether there was nothing at all."""
    with contextlib.suppress(ConnectionResetError):
        return await reader.read() == b""
    return True


async def echo(request: Request) -> Response:
    return Response(HTTPStatus.OK, f"{request.path} {request.headers.get('accept')}".encode())


async def fail(request: Request) -> Response:
    raise ValueError("as it was told to")


def test_routes_methods_and_errors(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        port = free_port()
        server = HttpServer("127.0.0.1", port)
        server.routes |= {"/echo": echo, "/fail": fail}
        serving = asyncio.create_task(server.run())
        await until(lambda: server.is_serving)
        head, body = await ask(port, "GET /echo?a=/fail HTTP/1.1\nHost: x\nACCEPT: text/plain\n\n")
        assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"/echo text/plain")
        head, body = await ask(port, "HEAD /echo HTTP/1.0\n\n")
        assert (b"Content-Length: 10" in head, body) == (True, b"")
        for request, status in (
            ("GET /fail HTTP/1.1", 500),
            ("GET /other HTTP/1.1", 404),
            ("POST /echo HTTP/1.1", 405),
            ("GET /echo", 400),
            ("GET http://elsewhere/ HTTP/1.1", 400),
            ("GET /echo HTTP/1.1\nno colon", 400),
        ):
            head, _ = await ask(port, f"{request}\n\n")
            assert int(head.split()[1]) == status, request
        serving.cancel()
        await asyncio.wait([serving], timeout=5)
        assert serving.cancelled()

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "/fail could not be answered."
    ]


def test_a_taken_port_is_warned_of_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.01)

    async def main() -> None:
        tries = 0
        start_server = asyncio.start_server

        async def count_and_start(*args: object, **options: object) -> object:
            nonlocal tries
            tries += 1
            return await start_server(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(asyncio, "start_server", count_and_start)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            server = HttpServer(*taken.getsockname())
            serving = asyncio.create_task(server.run())
            await until(lambda: tries >= 3)
        await until(lambda: server.is_serving)
        serving.cancel()

    asyncio.run(main())
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["WARNING"]


def test_the_oldest_goes_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(http, "READ_SECONDS", 60.0)

    async def main() -> None:
        port = free_port()
        server = HttpServer("127.0.0.1", port)
        server.routes["/echo"] = echo
        serving = asyncio.create_task(server.run())
        await until(lambda: server.is_serving)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for reader, _ in silent[:2]:
            assert await asyncio.wait_for(is_cut(reader), 10)
        assert (await ask(port, "GET /echo HTTP/1.1\n\n"))[1] == b"/echo None"
        assert await asyncio.wait_for(is_cut(silent[2][0]), 10)
        assert not any(reader.at_eof() for reader, _ in silent[3:])
        serving.cancel()  # cuts off the others
        await asyncio.wait([serving], timeout=5)
        assert [await asyncio.wait_for(is_cut(reader), 10) for reader, _ in silent[3:]] == [True, True]

    asyncio.run(main())
