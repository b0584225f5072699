"""Measures how fast the page of `terrella view` opens in Chromium: results/viewer.json.

python benchmarks/viewer.py
"""

import json
import os
import statistics
import tempfile
from pathlib import Path

import common
from playwright.sync_api import sync_playwright

from terrella.browser.launch import find_chromium
from terrella.commands.view import View
from terrella.pipelines.collect.pipeline import Collect
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.worlds.sokoban import Sokoban


def viewer():
    """Open a page with 1,000 episodes ten times in Chromium."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        store = Path(folder, "store")
        config = Collect.Config(
            world=Sokoban.Config(), policy=Random.Config(), out=store, episodes=1000
        )
        Collect(config).run(SilentProgress())
        with common.Timer() as writing:
            (page,) = View(View.Config(run=store, forked=1000)).write()
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        seconds = [open_page(browser, page) for _ in range(10)]
        browser.close()
        megabytes = round(page.stat().st_size / 1e6, 2)
    return {
        "what": "sokoban, 1,000 episodes with all counterfactuals, opened ten times in Chromium, "
        "from goto to ready",
        "episodes": 1000,
        "page_megabytes": megabytes,
        "seconds": {
            "median": round(statistics.median(seconds), 3),
            "worst": round(max(seconds), 3),
        },
        "writing_cpu_seconds": round(writing.cpu_seconds, 1),
        "load_average": os.getloadavg(),
    }


def open_page(browser, page):
    tab = browser.new_page()
    with common.Timer() as timer:
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]")
    tab.close()
    return timer.seconds


if __name__ == "__main__":
    part = common.write_part("viewer", "open", viewer(), command=common.command())
    print(json.dumps(part, indent=1))
