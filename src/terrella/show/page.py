"""Viewer pages that open from disk: one HTML file with its script, style and data inside.

The script and the style are built from `viewer/` into `show/bundle/` and kept in the repository, so
that nobody needs Node to install or use terrella. A content security policy inside the page forbids
every other script and every connection.
    write_pages(builder.data(), Path("runs/lake/view"), max_bytes=50_000_000)
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from terrella.core.errors import ConfigError
from terrella.core.files import write_atomic

OBSERVATION_KEYS = ("seen", "first")
"""Keys of the page data whose values are indices of observations."""


def bundle_file(name: str) -> str:
    """Read a file of the built front end."""
    file = files("terrella.show") / "bundle" / name
    if not file.is_file():
        raise ConfigError(
            f"show/bundle/{name}",
            "the viewer was not built",
            "cd viewer && npm ci && npm run build",
        )
    return file.read_text("utf-8")


def render_page(data: Mapping[str, Any]) -> str:
    """Return the HTML of a page.

    Text that models wrote is inside the packed data and becomes text nodes, never markup. NaN and
    infinity, which JSON does not have, are shown as unknown.
    """
    script = bundle_file("viewer.js")
    style = bundle_file("style.css")
    try:
        encoded = json.dumps(data, allow_nan=False).encode()
    except ValueError:
        encoded = json.dumps(_finite(data), allow_nan=False).encode()
    packed = base64.b64encode(gzip.compress(encoded, 6, mtime=0)).decode()
    connect = "'self'" if data["live"] else "'none'"
    policy = (
        f"default-src 'none'; img-src data:; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'; "
        f"script-src {_hash(script)}; style-src {_hash(style)}"
    )
    title = html.escape(str(data["title"]))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head><body><p>Opening …</p>"
        f'<script type="text/plain" id="data">{packed}</script>'
        f"<script>{script}</script></body></html>"
    )


def _finite(value: Any) -> Any:
    """A copy with None in place of NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def page_name(number: int) -> str:
    """Name the pages `view.html`, `view-2.html` and so on."""
    return "view.html" if number == 0 else f"view-{number + 1}.html"


def write_pages(data: Mapping[str, Any], folder: Path, *, max_bytes: int) -> list[Path]:
    """Write the episodes as one page, or as several of at most `max_bytes` each.

    Pages left over from an earlier call are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pages = _split(data, max_bytes)
    names = [page_name(number) for number in range(len(pages))]
    for stale in folder.glob("view*.html"):
        if stale.name not in names:
            stale.unlink()
    for number, page in enumerate(pages):
        content = render_page({**page, "pages": names, "page": number})
        write_atomic(folder / names[number], content.encode())
    return [folder / name for name in names]


def _split(data: Mapping[str, Any], max_bytes: int) -> list[dict[str, Any]]:
    """Halve the episodes until every page fits; a single episode is never cut."""
    episodes = data["episodes"]
    if len(episodes) < 2 or len(render_page(data)) <= max_bytes:
        return [dict(data)]
    middle = len(episodes) // 2
    halves = (episodes[:middle], episodes[middle:])
    return [page for half in halves for page in _split(_subset(data, half), max_bytes)]


def _subset(data: Mapping[str, Any], episodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the data of some of the episodes, with the observations that they use."""
    new_indices: dict[int, int] = {}
    renumbered = [_renumber(episode, new_indices) for episode in episodes]
    observations = [data["observations"][index] for index in new_indices]
    return {**data, "episodes": renumbered, "observations": observations}


def _renumber(value: Any, new_indices: dict[int, int]) -> Any:
    """Copy a value with new indices of observations; new ones are added to `new_indices`."""
    if isinstance(value, list):
        return [_renumber(item, new_indices) for item in value]
    if not isinstance(value, dict):
        return value
    copy = {}
    for key, item in value.items():
        if key in OBSERVATION_KEYS and isinstance(item, int):
            copy[key] = new_indices.setdefault(item, len(new_indices))
        elif key == "info":  # written by a world: its keys mean something else
            copy[key] = item
        else:
            copy[key] = _renumber(item, new_indices)
    return copy
