"""The shop's addresses."""

from django.urls import path

from testproject.shop import views

urlpatterns = [
    path("", views.home, name="home"),
    path("do/<slug:name>/", views.do, name="do"),
    path("slow/", views.slow, name="slow"),
]
