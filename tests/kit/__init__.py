"""What it takes to break things on purpose and to see what happened, on real processes and a real PostgreSQL.

===========  =====================================================================================================
ledger       who ran when: rows that bodies write over a connection of their own, whatever becomes of their run
gate         a body waits until the test opens it, so that races are ordered and not timed
freeze       SIGSTOP for a dispatcher, a zygote, an executor; thawed at the end
cut          end database sessions by their role
relay        a TCP relay before PostgreSQL that forwards, holds, swallows or refuses
pooler       a PgBouncer before PostgreSQL that pools transactions, to stop and start
network      hosts in network namespaces, each with a link that can be cut
server       a PostgreSQL of the test's own for the runs, to stop and start, beside the ledger's
redis        a redis-server of the test's own, to stop, freeze and flush
dispatchers  real ``rundispatcher`` processes, their families, their logs
wait_for     poll until it is so; fail with the last value
===========  =====================================================================================================

Each name is a fixture (see fixtures.py) but the last, which is in waiting.py. ``kit`` is all of them; a module that
shares one dispatcher opens a kit of its own with ``open_kit``. The package is also a Django app: its tasks are what
the dispatchers run.
"""
