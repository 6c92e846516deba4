"""A model of the lease protocol, small enough that every state of it can be looked at."""
