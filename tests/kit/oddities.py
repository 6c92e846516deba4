"""Awful things that bodies return and raise, by name."""

import asyncio
import os
import socket
import sys
import threading
from typing import Any, NoReturn


class NeedsTwo(Exception):
    """Cannot be made again from its args alone."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second


class HoldsASocket(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holds a socket and a lambda")
        self.socket = socket.socket()
        self.function = lambda: None


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class UnprintableBase(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even this")


class OwnBase(BaseException):
    pass


class LyingClass(Exception):
    """Claims to be another class, which has no such attributes."""

    __class__ = int  # type: ignore[assignment]


class Unnamable(type):
    """Classes that do not tell what they are called."""

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__name__", "__qualname__"):
            raise SystemExit("no name")
        return super().__getattribute__(name)


class OfNoName(Exception, metaclass=Unnamable):
    pass


class OddText(str):
    """A text that cannot be measured, cut or joined."""

    def __len__(self) -> int:
        raise SystemExit("no length")

    __getitem__ = __iter__ = __str__ = __format__ = __eq__ = __len__  # type: ignore[assignment]
    __hash__ = str.__hash__


class SaysOddly(Exception):
    def __str__(self) -> str:
        return OddText("said oddly")


class OfNoNameToo(metaclass=Unnamable):
    pass


class AwfulThings:
    """Each is called without arguments by a body."""

    # results

    @staticmethod
    def return_nul() -> str:
        return "a\x00b"

    @staticmethod
    def return_surrogate() -> str:
        return "\ud800"

    @staticmethod
    def return_nul_key() -> dict[str, int]:
        return {"k\x00ey": 1}

    @staticmethod
    def return_escaped_nul() -> str:
        return "\\u0000"

    @staticmethod
    def return_object() -> object:
        return object()

    @staticmethod
    def return_nan() -> float:
        return float("nan")

    @staticmethod
    def return_too_deep() -> Any:
        value: list[Any] = []
        for _ in range(7000):
            value = [value]
        return value

    @staticmethod
    def return_huge_number() -> int:
        sys.set_int_max_str_digits(0)
        return 10**140_000  # JSON has no limit, PostgreSQL has one

    @staticmethod
    def return_circular() -> Any:
        value: list[Any] = []
        value.append(value)
        return value

    @staticmethod
    def return_too_long() -> str:
        return "m" * 100_000_000

    @staticmethod
    def return_unnamable() -> object:
        return OfNoNameToo()

    @staticmethod
    def print_nul() -> None:
        print("a\x00b")  # noqa: T201

    # exceptions

    @staticmethod
    def raise_nul() -> NoReturn:
        raise ValueError("x\x00y")

    @staticmethod
    def raise_five_megabytes() -> NoReturn:
        raise ValueError("m" * 5_000_000)

    @staticmethod
    def raise_needs_two() -> NoReturn:
        raise NeedsTwo("one", "two")

    @staticmethod
    def raise_holds_a_socket() -> NoReturn:
        raise HoldsASocket

    @staticmethod
    def raise_unprintable() -> NoReturn:
        raise Unprintable

    @staticmethod
    def raise_unprintable_base() -> NoReturn:
        raise UnprintableBase

    @staticmethod
    def raise_local() -> NoReturn:
        class Local(Exception):
            pass

        raise Local("from within")

    @staticmethod
    def raise_group() -> NoReturn:
        raise ExceptionGroup("outer", [ValueError("one"), ExceptionGroup("inner", [KeyError("two")])])

    @staticmethod
    def raise_chain() -> NoReturn:
        error: BaseException = ValueError("the first")
        for number in range(1000):
            following = ValueError(f"number {number}")
            following.__cause__ = error
            error = following
        raise error

    @staticmethod
    def raise_lying_class() -> NoReturn:
        raise LyingClass("no int")

    @staticmethod
    def raise_unnamable() -> NoReturn:
        raise OfNoName("but a text")

    @staticmethod
    def raise_odd_text() -> NoReturn:
        raise SaysOddly

    @staticmethod
    def raise_recursion_error() -> Any:
        return AwfulThings.raise_recursion_error()

    # what is no Exception

    @staticmethod
    def system_exit_0() -> NoReturn:
        sys.exit(0)

    @staticmethod
    def system_exit_text() -> NoReturn:
        sys.exit("so long")

    @staticmethod
    def keyboard_interrupt() -> NoReturn:
        raise KeyboardInterrupt

    @staticmethod
    def cancelled_error() -> NoReturn:
        raise asyncio.CancelledError("by myself")

    @staticmethod
    def generator_exit() -> NoReturn:
        raise GeneratorExit

    @staticmethod
    def own_base() -> NoReturn:
        raise OwnBase("mine")

    @staticmethod
    def eat_memory() -> int:
        """Take a gigabyte, and use it."""
        return len([bytearray(os.urandom(1024) * 1024) for _ in range(1024)])

    @staticmethod
    def exit_process() -> NoReturn:
        os._exit(0)

    @staticmethod
    def exit_thread() -> str:
        thread = threading.Thread(target=sys.exit)
        thread.start()
        thread.join()
        return "the body went on"

    @staticmethod
    def fork_and_return() -> str:
        if os.fork() == 0:
            return "the child"
        os.wait()
        return "the parent"
