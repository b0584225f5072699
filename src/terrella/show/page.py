"""A page that opens from disk: one HTML file with its script, its style and its data inside, and no address to call.

The script and the style are built from `viewer/` into `show/bundle/` and kept in the repository, so that nobody needs
Node to install or use terrella. A policy inside the page forbids every script but ours and every connection.
    write_pages(book, Path("runs/lake/view"), most_bytes=50_000_000)   # view.html, view-2.html, ...
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from terrella.core.errors import ConfigError

BUNDLE = ("viewer.js", "style.css")


def bundle_file(name: str) -> str:
    """A file of the built front end; says how to build it when it is not there."""
    found = files("terrella.show") / "bundle" / name
    if not found.is_file():
        raise ConfigError(f"show/bundle/{name}", "the viewer was not built", "cd viewer && npm ci && npm run build")
    return found.read_text("utf-8")


def render_page(data: Mapping[str, Any]) -> str:
    """The whole file. What models wrote is inside packed data and becomes text nodes: it cannot become markup."""
    script, style = (bundle_file(name) for name in BUNDLE)
    packed = base64.b64encode(gzip.compress(json.dumps(data, allow_nan=False).encode(), 6, mtime=0)).decode()
    connect = "'self'" if data["live"] else "'none'"
    policy = (
        f"default-src 'none'; img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'; "
        f"script-src {_hash(script)}; style-src {_hash(style)}"
    )
    title = html.escape(str(data["title"]))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head><body><p>Opening …</p>"
        f'<script type="text/plain" id="data">{packed}</script><script>{script}</script></body></html>'
    )


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def page_name(number: int) -> str:
    """`view.html`, then `view-2.html` and so on."""
    return "view.html" if number == 0 else f"view-{number + 1}.html"


def write_pages(data: Mapping[str, Any], folder: Path, *, most_bytes: int) -> list[Path]:
    """Write the pages, as few as `most_bytes` each allows; pages of an earlier call that are not needed go."""
    folder.mkdir(parents=True, exist_ok=True)
    shares = _split(data, most_bytes)
    names = [page_name(number) for number in range(len(shares))]
    for stale in folder.glob("view*.html"):
        if stale.name not in names:
            stale.unlink()
    for number, share in enumerate(shares):
        (folder / names[number]).write_text(render_page({**share, "pages": names, "page": number}), "utf-8")
    return [folder / name for name in names]


def _split(data: Mapping[str, Any], most_bytes: int) -> list[dict[str, Any]]:
    """Halves, until each fits; a single episode is never cut."""
    if len(data["episodes"]) < 2 or len(render_page(data)) <= most_bytes:
        return [dict(data)]
    middle = len(data["episodes"]) // 2
    halves = (data["episodes"][:middle], data["episodes"][middle:])
    return [share for half in halves for share in _split(_only(data, half), most_bytes)]


def _only(data: Mapping[str, Any], episodes: list[dict[str, Any]]) -> dict[str, Any]:
    """The data of some of the episodes, with the observations they need."""
    places: dict[int, int] = {}
    moved = [_moved(row, places) for row in episodes]
    return {**data, "episodes": moved, "observations": [data["observations"][place] for place in places]}


def _moved(value: Any, places: dict[int, int]) -> Any:
    """The same value with new places of observations, which stand under `seen` and `first`."""
    if isinstance(value, list):
        return [_moved(item, places) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: places.setdefault(item, len(places)) if key in ("seen", "first") and isinstance(item, int)
        else item if key == "info" else _moved(item, places)
        for key, item in value.items()
    }  # fmt: skip
