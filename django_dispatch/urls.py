"""``path("dispatch/", include("django_dispatch.urls"))`` serves the metrics of a process of the web."""

from django.urls import path

from . import views

app_name = "django_dispatch"
urlpatterns = [path("metrics", views.metrics, name="metrics")]
