"""Settings of the suite: the shop's, the kit's app beside it, and what one dispatcher is to have otherwise."""

import json
import os

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS as SHOP_APPS

INSTALLED_APPS = [*SHOP_APPS, "tests.kit", *os.environ.get("KIT_APPS", "").split()]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# A test gives a dispatcher that it starts settings of its own: see kit/dispatchers.py.
# Many live on one host: those that are to serve metrics are given a port.
DISPATCH: dict[str, object] = {"METRICS_PORT": 0} | json.loads(os.environ.get("KIT_DISPATCH", "{}"))
DATABASES["default"] |= json.loads(os.environ.get("KIT_DATABASE", "{}"))  # noqa: F405
if "KIT_LOGGING" in os.environ:
    LOGGING = json.loads(os.environ["KIT_LOGGING"])
if "KIT_OTHER_ALIAS" in os.environ:
    DATABASE_ROUTERS = ["django_dispatch.routers.DispatchRouter"]
    DATABASES["other"] = DATABASES["default"] | json.loads(os.environ["KIT_OTHER_ALIAS"])  # noqa: F405
