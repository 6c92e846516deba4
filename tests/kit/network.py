"""Hosts in network namespaces, on one bridge with the test: each can be cut off alone. Needs root and iproute2."""

import contextlib
import os
import shutil
import subprocess

import pytest

PREFIX_LENGTH = 24


class Network:
    """``host("a")`` makes a host; ``cut(host)`` takes its link down, ``heal(host)`` up again. close() removes all."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can make network namespaces")
        if shutil.which("ip") is None:
            pytest.skip("there is no ip command: install iproute2")
        pid = os.getpid()
        self._bridge = f"kit{pid}"
        # From the range that is set aside for tests of networks.
        self._subnet = f"198.{18 + (pid >> 8) % 2}.{pid % 256}"
        self._hosts: list[str] = []
        try:
            self._ip("link", "add", self._bridge, "type", "bridge")
            self._ip("addr", "add", f"{self.address}/{PREFIX_LENGTH}", "dev", self._bridge)
            self._ip("link", "set", self._bridge, "up")
        except subprocess.CalledProcessError as error:
            self.close()
            pytest.skip(f"this system makes no bridge: {error.stderr.strip()}")

    @property
    def address(self) -> str:
        """Where the hosts find the test's own side."""
        return f"{self._subnet}.1"

    @property
    def addresses(self) -> str:
        return f"{self._subnet}.0/{PREFIX_LENGTH}"

    def host(self, name: str) -> str:
        """Make a host and return its full name, for ``dispatchers(host=…)``."""
        number = len(self._hosts) + 2
        host, port = f"{self._bridge}-{name}", f"{self._bridge}p{number}"
        self._hosts.append(host)
        try:
            self._ip("netns", "add", host)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this system makes no network namespaces: {error.stderr.strip()}")
        self._ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
        self._ip("-n", host, "addr", "add", f"{self._subnet}.{number}/{PREFIX_LENGTH}", "dev", "eth0")
        self._ip("-n", host, "link", "set", "eth0", "up")
        self._ip("link", "set", port, "master", self._bridge, "up")
        return host

    def cut(self, host: str) -> None:
        self._ip("link", "set", self._port(host), "down")

    def heal(self, host: str) -> None:
        self._ip("link", "set", self._port(host), "up")

    def close(self) -> None:
        for host in self._hosts:
            with contextlib.suppress(subprocess.CalledProcessError):
                self._ip("link", "del", self._port(host))
            with contextlib.suppress(subprocess.CalledProcessError):
                self._ip("netns", "del", host)
        with contextlib.suppress(subprocess.CalledProcessError):
            self._ip("link", "del", self._bridge)

    def _port(self, host: str) -> str:
        return f"{self._bridge}p{self._hosts.index(host) + 2}"

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
