"""As much of a project as the type checker's Django plugin needs: no database is touched."""

SECRET_KEY = "not secret"
INSTALLED_APPS = ["django_dispatch"]
