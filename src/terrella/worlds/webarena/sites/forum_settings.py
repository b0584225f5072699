# mypy: ignore-errors
"""Settings of the forum (django-spirit on SQLite); runs in the site's own Python."""

import os
from pathlib import Path

from spirit.extra.project_template.project_name.settings.base import *  # noqa: F403

HOME = Path(os.environ["SITE_HOME"])
SECRET_KEY = "only on loopback"
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "forum_urls"
WSGI_APPLICATION = None
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": HOME / "site.sqlite"}}
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
    "st_rate_limit": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
}
ST_TASK_MANAGER = None
ST_RATELIMIT_ENABLE = False
ST_SITE_URL = "http://forum.test/"
HAYSTACK_CONNECTIONS = {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}}
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
STATIC_ROOT = HOME / "static"
STATIC_URL = "/static/"
MEDIA_ROOT = HOME / "media"
MEDIA_URL = "/media/"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "spirit_storage": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
}
LOGGING = {"version": 1, "disable_existing_loggers": True}
