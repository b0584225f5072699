# mypy: ignore-errors
"""Settings of the forum: django-spirit on SQLite, run by the sites' own Python."""

import os
from pathlib import Path

from spirit.extra.project_template.project_name.settings.base import *  # noqa: F403

HOME = Path(os.environ["SITE_HOME"])
SECRET_KEY, DEBUG, ALLOWED_HOSTS, ROOT_URLCONF, WSGI_APPLICATION = "only on loopback", False, ["*"], "forum_urls", None
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": HOME / "site.sqlite"}}
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
    "st_rate_limit": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
}
ST_TASK_MANAGER, ST_RATELIMIT_ENABLE, ST_SITE_URL = None, False, "http://forum.test/"
HAYSTACK_CONNECTIONS = {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}}
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
STATIC_ROOT, MEDIA_ROOT, STATIC_URL, MEDIA_URL = HOME / "static", HOME / "media", "/static/", "/media/"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "spirit_storage": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
}
LOGGING = {"version": 1, "disable_existing_loggers": True}
