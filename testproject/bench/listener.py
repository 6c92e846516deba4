"""The listener of the bare measurement: marks when it wakes, and nothing else."""

import sys

import psycopg

from testproject.bench import marks


def main(url: str, channel: str, index: int) -> None:
    """Listen until killed."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"LISTEN {channel}".encode())
        marks.mark(index)
        for _ in connection.notifies():
            marks.mark(index)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
