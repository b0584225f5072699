# mypy: ignore-errors
"""URL routes of the forum."""

from django.http import HttpResponse
from django.urls import include, path

urlpatterns = [
    path("static/<path:name>", lambda request, name: HttpResponse("", content_type="text/plain")),
    path("", include("spirit.urls")),
]
