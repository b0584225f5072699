# mypy: ignore-errors
"""URL routes of the shop."""

from django.apps import apps
from django.http import HttpResponse
from django.urls import include, path

urlpatterns = [
    path("static/<path:name>", lambda request, name: HttpResponse("", content_type="text/plain")),
    path("media/<path:name>", lambda request, name: HttpResponse("", content_type="text/plain")),
    path("i18n/", include("django.conf.urls.i18n")),
    path("", include(apps.get_app_config("oscar").urls[0])),
]
