"""What bodies do to their process and leave behind, by name. What the next body finds there: found.py."""

import contextlib
import ctypes
import gc
import hashlib
import io
import logging
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextvars import ContextVar
from typing import Any, NoReturn

from django.db import connection, connections, transaction
from django.utils import timezone, translation

from django_dispatch.executors.state import LOOK_SECONDS

OTHER = "other"  # a second alias, of the same database as a rule, in dispatchers that are given KIT_OTHER_ALIAS
VARIABLE = "KIT_LEFT_BEHIND"
TREE = ["sh", "-c", "sleep 600 & sleep 600"]
context_variable: ContextVar[str] = ContextVar("kit", default="")


class Hangs:
    """Bodies that do not end by themselves, and what it takes to end them."""

    @staticmethod
    def sleep() -> None:
        time.sleep(600)

    @staticmethod
    def wait_for_a_silent_peer() -> None:
        ours, _theirs = socket.socketpair()
        ours.recv(1)

    @staticmethod
    def except_exception() -> None:
        """Swallow what an ordinary ``except`` does."""
        while True:
            with contextlib.suppress(Exception):
                time.sleep(600)

    @staticmethod
    def compute_in_c() -> None:
        hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 2**31 - 1)

    @staticmethod
    def block_in_c() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.CDLL(None).sleep(600)

    @staticmethod
    def catch_everything() -> NoReturn:
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(600)

    @staticmethod
    def ignore_the_signal() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        time.sleep(600)

    @staticmethod
    def stop_myself() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class Ends:
    """Bodies that end their process, or cut it off."""

    @staticmethod
    def segfault() -> None:
        ctypes.string_at(0)

    @staticmethod
    def abort() -> None:
        os.abort()

    @staticmethod
    def kill_myself() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @staticmethod
    def overflow_the_stack() -> None:
        sys.setrecursionlimit(2**30)
        # Later Pythons count C's recursion too, and stop at a depth for which the stack need not suffice.
        resource.setrlimit(resource.RLIMIT_STACK, (4096, resource.getrlimit(resource.RLIMIT_STACK)[1]))
        value: list[Any] = []
        for _ in range(1_000_000):
            value = [value]
        repr(value)

    @staticmethod
    def close_every_file() -> None:
        os.closerange(3, 1000)

    @staticmethod
    def close_every_file_and_stay() -> None:
        os.closerange(3, 1000)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.CDLL(None).sleep(600)

    @staticmethod
    def write_to_every_socket() -> None:
        for descriptor in range(3, 100):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as found:
                if found.family == socket.AF_UNIX:
                    found.send(b"This is no message.")
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.CDLL(None).sleep(600)


class Leaves:
    """Bodies that return, and leave their process changed."""

    @staticmethod
    def handlers() -> None:
        for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, lambda *_: None)

    @staticmethod
    def ignored_children() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    @staticmethod
    def alarm() -> None:
        signal.setitimer(signal.ITIMER_REAL, 600)

    @staticmethod
    def timers() -> None:
        time.sleep(LOOK_SECONDS)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.05)
        signal.setitimer(signal.ITIMER_PROF, 0.05)

    @staticmethod
    def blocked_signals() -> None:
        time.sleep(LOOK_SECONDS)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.kill(os.getpid(), signal.SIGALRM)

    @staticmethod
    def directory() -> None:
        os.chdir("/")

    @staticmethod
    def deleted_directory() -> None:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)

    @staticmethod
    def umask() -> None:
        os.umask(0o777)

    @staticmethod
    def environment() -> None:
        os.environ[VARIABLE] = "left"
        os.environ["TZ"] = "Asia/Tokyo"
        time.tzset()
        del os.environ["KIT_DIR"]

    @staticmethod
    def another_environment() -> None:
        os.environ = {}  # type: ignore[assignment]  # noqa: B003

    @staticmethod
    def recursion_limit() -> None:
        sys.setrecursionlimit(100)

    @staticmethod
    def no_collector() -> None:
        gc.disable()

    @staticmethod
    def captured_output() -> None:
        sys.stdout = sys.stderr = io.StringIO()

    @staticmethod
    def contexts() -> None:
        translation.activate("de")
        timezone.activate("Asia/Tokyo")
        context_variable.set("left")

    @staticmethod
    def open_transaction() -> None:
        transaction.atomic().__enter__()
        _execute("CREATE TEMP TABLE kit_left (id int)")

    @staticmethod
    def open_transaction_elsewhere() -> None:
        transaction.atomic(OTHER).__enter__()
        _execute("SELECT pg_advisory_lock(4711)", OTHER)

    @staticmethod
    def no_autocommit() -> None:
        connection.set_autocommit(False)
        _execute("SELECT 1")

    @staticmethod
    def raw_transaction() -> None:
        _execute("BEGIN")

    @staticmethod
    def failed_transaction() -> None:
        _execute("BEGIN")
        with contextlib.suppress(Exception):
            _execute("SELECT nothing")

    @staticmethod
    def session_state() -> None:
        _execute("SET search_path = nowhere")
        _execute("SET statement_timeout = 60000")
        _execute("SET default_transaction_isolation = 'serializable'")
        _execute("SELECT pg_advisory_lock(4711)")
        _execute("LISTEN kit_left")
        _execute("CREATE TEMP TABLE kit_ledger (id int)")
        _execute("SET ROLE pg_monitor")

    @staticmethod
    def closed_connection() -> None:
        with contextlib.suppress(Exception), transaction.atomic():
            _execute("SELECT 1")
            connection.connection.close()

    @staticmethod
    def closed_socket() -> None:
        _execute("SELECT 1")
        os.close(connection.connection.fileno())

    @staticmethod
    def broken_wrapper() -> None:
        _execute("SELECT 1")

        def broken() -> NoReturn:
            raise SystemExit("broken")

        connection.get_autocommit = connection.close = broken  # type: ignore[method-assign]

    @staticmethod
    def threads() -> None:
        """One that runs for ever, keeps the interpreter from ending, and uses the database; one that raises."""

        def work() -> None:
            while True:
                time.sleep(0.05)
                _execute("SELECT 1")

        threading.Thread(target=work, daemon=False).start()
        threading.Thread(target=sys.exit).start()


class LeavesForGood:
    """Bodies that change what nobody looks after: it stays until their executor is replaced."""

    @staticmethod
    def clocks_and_modules() -> None:
        for name in ("time", "monotonic", "perf_counter", "sleep", "clock_gettime_ns"):
            setattr(time, name, lambda *_: "never")
        for name in [name for name in sys.modules if name.startswith("django.")]:
            del sys.modules[name]
        warnings.simplefilter("error")
        logging.disable()


class LeavesNoGoodProcess:
    """Bodies that return, and leave a process that only a fresh one can replace."""

    @staticmethod
    def niceness() -> None:
        time.sleep(LOOK_SECONDS)
        os.nice(5)

    @staticmethod
    def closed_output() -> None:
        time.sleep(LOOK_SECONDS)
        sys.stdout.close()

    @staticmethod
    def closed_descriptors() -> None:
        time.sleep(LOOK_SECONDS)
        os.closerange(0, 3)

    @staticmethod
    def redirected_descriptors() -> None:
        time.sleep(LOOK_SECONDS)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.close(null)


class Starts:
    """Bodies that start processes, in good order."""

    @staticmethod
    def program() -> str:
        return subprocess.run(["echo", "fine"], check=True, capture_output=True, text=True).stdout

    @staticmethod
    def fork_and_exec() -> int:
        pid = os.fork()
        if pid == 0:
            os.execvp("true", ["true"])
        return os.waitpid(pid, 0)[1]

    @staticmethod
    def pool_by_fork() -> list[int]:
        return _map_in_a_pool("fork")

    @staticmethod
    def pool_by_spawn() -> list[int]:
        return _map_in_a_pool("spawn")

    @staticmethod
    def pool_by_forkserver() -> list[int]:
        return _map_in_a_pool("forkserver")

    @staticmethod
    def process_pool_executor() -> list[int]:
        with ProcessPoolExecutor(2) as pool:
            return list(pool.map(abs, [-1, -2, -3]))


def start_tree() -> None:
    """Start a shell that starts two programs."""
    subprocess.Popen(TREE)


def start_daemon() -> None:
    """Start a program as daemons are: in a session of its own, its parents gone."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
    os.waitpid(pid, 0)


def _map_in_a_pool(method: str) -> list[int]:
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(abs, [-1, -2, -3])


def _execute(query: str, alias: str = "default") -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(query)
