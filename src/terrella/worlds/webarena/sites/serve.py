# mypy: ignore-errors
"""Serves one site on loopback; runs in the site's own Python.

python serve.py shop|forum|tracker PORT
"""

import os
import sys

from waitress import serve

name, port = sys.argv[1], int(sys.argv[2])
if name == "tracker":
    from trac.web.main import dispatch_request

    os.environ["TRAC_ENV"] = os.path.join(os.environ["SITE_HOME"], "trac")  # noqa: PTH118

    def application(environ, start_response):
        """Trac's WSGI application, with the path of its environment."""
        environ["trac.env_path"] = os.environ["TRAC_ENV"]
        return dispatch_request(environ, start_response)
else:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", f"{name}_settings")
    from django.core.wsgi import get_wsgi_application

    application = get_wsgi_application()
serve(application, host="127.0.0.1", port=port, threads=4, ident=name)
