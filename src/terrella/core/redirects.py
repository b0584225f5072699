"""HTTP requests that go to the named host and to no other.

A redirect would carry the key or the token of a request to wherever the server points.
    opener = urllib.request.build_opener(NoRedirect())
"""

from __future__ import annotations

import urllib.request
from typing import Any


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they would send the key and the content somewhere else."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        """Return None, which makes urllib raise an HTTPError."""
