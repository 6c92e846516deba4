"""The listener of the bare measurement of Redis: takes from a sorted set, marks when it wakes, and nothing else."""

import sys

import redis

from testproject.bench import marks


def main(url: str, key: str, index: int) -> None:
    """Listen until killed."""
    client = redis.Redis.from_url(url)
    client.ping()
    marks.mark(index)
    while True:
        if client.bzpopmin(key, timeout=60):
            marks.mark(index)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
