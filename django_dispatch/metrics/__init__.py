"""What is counted and shown: families of figures (pure), their text for Prometheus, and what this process enqueues."""

from importlib.util import find_spec

HINT = 'pip install "django-dispatch[metrics]"'


def can_be_exposed() -> bool:
    """Return whether prometheus-client, of the extra ``metrics``, is installed; exposition.py needs it."""
    return find_spec("prometheus_client") is not None
