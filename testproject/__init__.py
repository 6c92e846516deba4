"""A small but real Django site that django-dispatch is shown and tested with."""
