"""Settings of the shop. DATABASE_URL names another database than the embedded one, STATE_DIR another home for files."""

import json
import os
from pathlib import Path

import django

from testproject import postgres

BASE_DIR = Path(__file__).resolve().parent.parent
STATE_DIR = Path(os.environ.get("STATE_DIR", BASE_DIR))

SECRET_KEY = "a demo has no secrets"
DEBUG = os.environ.get("DEBUG", "1").lower() not in ("", "0", "false", "no")
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", "testserver"]
# Only where the demo says so: whoever measures or tests wants no runs but his own.
SHOP_SCHEDULES = bool(os.environ.get("SHOP_SCHEDULES"))
SITE_URL = os.environ.get("SITE_URL", "http://127.0.0.1:8000")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_dispatch",
    "testproject.shop",
    "testproject.bench",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "testproject.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# Only read here: manage.py and the tests start the embedded server, a type checker must not.
DATABASES = {"default": postgres.django_database(os.environ.get("DATABASE_URL") or postgres.project_server().url)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DISPATCH: dict[str, object] = {}
if "WAKEUPS" in os.environ:
    DISPATCH["WAKEUPS"] = json.loads(os.environ["WAKEUPS"])
if "REDIS_URL" in os.environ:
    CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["REDIS_URL"]}}

MAIL_TO_FILES = "django.core.mail.backends.filebased.EmailBackend"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": MAIL_TO_FILES, "OPTIONS": {"file_path": STATE_DIR / "sent_mail"}}}
else:
    EMAIL_BACKEND = MAIL_TO_FILES
    EMAIL_FILE_PATH = STATE_DIR / "sent_mail"
DEFAULT_FROM_EMAIL = "shop@example.com"
MEDIA_ROOT = STATE_DIR / ".demo" / "media"

STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"run": {"()": "django_dispatch.RunContextFilter"}},
    "formatters": {"line": {"()": "testproject.logs.RunFormatter"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["run"]}},
    "root": {"handlers": ["console"], "level": "INFO"},
    # The home page asks for itself every three seconds, and each supplier would be a line.
    "loggers": {"django.server": {"level": "WARNING"}, "httpx": {"level": "WARNING"}},
}
