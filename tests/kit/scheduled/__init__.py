"""An app whose tasks have schedules, for the dispatchers that are told to have it: ``env=SCHEDULED``."""
