"""A TCP relay before PostgreSQL: the network, with its bad days."""

import contextlib
import socket
import struct
import threading
from urllib.parse import urlsplit

DIRECTIONS = ("requests", "answers")
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Relay:
    """Forwards, until it is told to hold, swallow or refuse. ``url`` is a database's address by way of it."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._target = (self._parts.hostname or "127.0.0.1", self._parts.port or 5432)
        self._flows = threading.Event()
        self._swallowed: frozenset[str] = frozenset()
        self._links: list[_Link] = []
        self._port = 0
        self._listener: socket.socket | None = None
        self.forward()

    @property
    def url(self) -> str:
        account, at, _ = self._parts.netloc.rpartition("@")
        return self._parts._replace(netloc=f"{account}{at}127.0.0.1:{self._port}").geturl()

    def forward(self) -> None:
        """Carry bytes both ways; what was held goes on. Connections that were swallowed stay deaf: use new ones."""
        self._swallowed = frozenset()
        self._flows.set()
        if self._listener is None:
            self._listen()

    def hold(self) -> None:
        """Carry nothing for now and lose nothing: a network partition that heals."""
        self._flows.clear()

    def swallow(self, *directions: str) -> None:
        """Take all bytes and carry none, with every socket open: half-open connections, old and new ones.

        ``directions`` leaves it at ``requests`` or ``answers``.
        """
        self._swallowed = frozenset(directions or DIRECTIONS)
        for link in self._links:
            link.swallowed = self._swallowed

    def swallow_one(self, port: int) -> None:
        """Make one connection half-open: the one that the server sees come from this port."""
        self._link(port).swallowed = frozenset(DIRECTIONS)

    def cut_one(self, port: int) -> None:
        """Reset one connection: the one that the server sees come from this port."""
        link = self._link(port)
        self._links.remove(link)
        link.close()

    def refuse(self) -> None:
        """Reset all connections and accept no new ones: a server that is down."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut()

    def cut(self) -> None:
        """Reset all connections; new ones are welcome."""
        links, self._links = self._links, []
        for link in links:
            link.close()

    def close(self) -> None:
        self._flows.set()
        self.refuse()

    def _link(self, port: int) -> "_Link":
        (link,) = (link for link in self._links if link.port == port)
        return link

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen(100)
        self._port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=[listener], daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                link = _Link(client, socket.create_connection(self._target), self._flows, self._swallowed)
            except OSError:
                client.close()
            else:
                self._links.append(link)


class _Link:
    """One relayed connection: two sockets, and a thread a direction."""

    def __init__(
        self, client: socket.socket, server: socket.socket, flows: threading.Event, swallowed: frozenset[str]
    ) -> None:
        self.swallowed = swallowed
        self.port = server.getsockname()[1]
        self._ends = (client, server)
        self._flows = flows
        for direction, source, sink in zip(DIRECTIONS, self._ends, reversed(self._ends), strict=True):
            threading.Thread(target=self._pump, args=[direction, source, sink], daemon=True).start()

    def _pump(self, direction: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                if direction not in self.swallowed:
                    sink.sendall(data)
            if direction not in self.swallowed:
                sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                end.shutdown(socket.SHUT_RDWR)
            end.close()
