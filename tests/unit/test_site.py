"""The docs site is built strictly, and a reader's browser fetches nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="needs the extra: pip install 'terrella[docs]'")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site):
    for name in ("index", "concepts", "glossary", "recipes", "contributing", "api/worlds"):
        assert (site / f"{name}.html").stat().st_size > 5000, name
    assert (site / "repository/examples/elevator.py").exists()  # linked from your_env.md
    assert 'class="doc doc-' in (site / "api/worlds.html").read_text("utf-8")


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        fetched = re.findall(r'<(?:script|img|iframe|source)[^>]*\ssrc="([^"]+)"', text)
        fetched += re.findall(
            r'<link[^>]*\srel="(?:stylesheet|preconnect|icon)"[^>]*href="([^"]+)"', text
        )
        fetched += re.findall(
            r'<link[^>]*\shref="([^"]+)"[^>]*rel="(?:stylesheet|preconnect|icon)"', text
        )
        assert [target for target in fetched if "//" in target] == [], page.name
        assert 'class="mermaid"' not in text, f"{page.name}: a mermaid drawing loads its script"


def test_every_markdown_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(page for page in pages if page not in listed) == []


def test_the_use_in_a_module_docstring_becomes_code(site):
    page = (site / "api/trust.html").read_text("utf-8")
    text = re.sub(r"<[^>]+>", "", page)
    assert '[-1]["risk"]' in text.replace("&quot;", '"') and "imagine(FrozenLake" in text
