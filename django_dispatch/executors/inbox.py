"""An executor's assignments: those it holds a ticket for are its own to start. In executors."""

import os
import socket

from ..messages import Answer, Assignment, FrameReader, StackOrder, StopOrder, take_tickets

LARGEST_READ = 1 << 18


class Inbox:
    """Matches tickets with assignments. Those whose ticket was taken back are dropped when a later one comes."""

    def __init__(self, tickets: socket.socket, stream: socket.socket) -> None:
        self._tickets = tickets
        self._stream = stream
        self._frames = FrameReader()
        self._assignments: dict[int, Assignment] = {}
        self._orders: list[StopOrder | StackOrder | Answer] = []

    def take(self, most: int, flags: int = 0) -> list[Assignment]:
        """Take up to ``most`` assignments, which are to be started now. Empty: the dispatcher is gone.

        Raises BlockingIOError as take_tickets() does.
        """
        assignments = []
        for ticket in take_tickets(self._tickets, most, flags) or ():
            while ticket not in self._assignments:  # sent before the ticket was, so never long in coming
                self.read_stream(0)
            assignments.append(self._assignments.pop(ticket))
            while self._assignments and next(iter(self._assignments)) < ticket:
                del self._assignments[next(iter(self._assignments))]
        return assignments

    def read_stream(self, flags: int = socket.MSG_DONTWAIT) -> None:
        """Read what the dispatcher sent. Ends the process when the dispatcher is gone."""
        data = self._stream.recv(LARGEST_READ, flags)
        if not data:
            os._exit(0)
        for message in self._frames.feed(data):
            if isinstance(message, Assignment):
                self._assignments[message.ticket] = message
            elif isinstance(message, StopOrder | StackOrder | Answer):
                self._orders.append(message)

    def take_orders(self) -> list[StopOrder | StackOrder | Answer]:
        """Take the orders and answers that were read, be it on the way to an assignment."""
        orders, self._orders = self._orders, []
        return orders
