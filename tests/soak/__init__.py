"""The soak: random mixed work, random faults, and an audit of what became of every run. ``python -m tests.soak``.

===========  =====================================================================================================
plan         the schedule of faults, made from the seed before anything begins
tasks        the bodies: quick, slow, failing, hanging, crashing, holding transactions
ledger       what bodies did: files, which neither a fault of the database nor a SIGKILL can take back
migrations   what the database did: a trigger writes every change of every run into ``soak_history``
writers      enqueue from a seeded stream, by every door, and note the fate of each transaction
steering     cancels, runs again, deletes
fleet        the dispatchers, and the supervisor that starts them again
faults       does to them what the plan says
evidence     all of the above, collected when it is over
audit        what must be true of the evidence; pure
timeline     what was done and what was seen, merged by time
===========  =====================================================================================================

The package is also a Django app: its tasks are what the dispatchers run.
"""
