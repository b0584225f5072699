"""Draws the moving picture of the README from a run: docs/pictures/view_wrong_step.gif.

    terrella train-world-model sokoban_model --out runs/sokoban --set transitions=8000
    terrella certify runs/sokoban --set exploited_on=8 --set plan_depth=2 --set samples=4
    terrella view runs/sokoban
    python benchmarks/moving_picture.py runs/sokoban/view/view.html
Needs Chromium and Pillow (extra dev). The episode is the first, of some length, whose first wrong
prediction is of a step with more risk than most.
"""

import io
import statistics
import sys
from pathlib import Path

import common
from PIL import Image
from playwright.sync_api import sync_playwright

from terrella.browser.launch import find_chromium

TARGET = common.PICTURES / "view_wrong_step.gif"
SIZE = {"width": 1240, "height": 600}
STEP_MS, HOLD_MS = 900, 3200
COLOURS = 64
TRIED = 150
"""Episodes that are looked at."""
SHORTEST, BEFORE = 6, 6
EARLIEST, LATEST = 2, 10
"""Where the wrong step may be: after some right ones, and soon."""


def main(page_path):
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(page_path.resolve().as_uri())
        page.wait_for_selector("html[data-ready]")
        page.select_option("#filter-look", "wrong")
        miss = find_episode(page)
        frames, times = record(page, miss)
        browser.close()
    frames[0].save(
        TARGET, save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True
    )
    print(TARGET, f"{TARGET.stat().st_size / 1e3:.0f} kB", len(frames), "frames")


def find_episode(page):
    """Open an episode whose first wrong step is riskier than most; return that step."""
    episodes = int(page.locator("#count").inner_text().split()[0])
    for _ in range(min(episodes, TRIED)):
        heights = page.locator(".ribbon .bar").evaluate_all(
            "all => all.map(bar => parseFloat(bar.getAttribute('height')))"
        )
        circles = page.locator(".ribbon .miss").evaluate_all(
            "all => all.map(circle => parseFloat(circle.getAttribute('cx')))"
        )
        misses = [round(x / 100 * len(heights) + 0.5) for x in circles]
        long = len(heights) >= SHORTEST and misses and EARLIEST <= misses[0] <= LATEST
        if long and statistics.median(heights) < heights[misses[0] - 1]:
            return misses[0]
        page.keyboard.press("j")
    raise SystemExit(f"no such episode among {episodes}")


def record(page, miss):
    """A picture of each step up to the wrong one; the wrong one is shown longer."""
    frames, times = [], []
    page.keyboard.press("Home")
    for _ in range(max(miss - BEFORE, 0)):
        page.keyboard.press("ArrowRight")
    for at in range(max(miss - BEFORE, 0), miss + 1):
        page.wait_for_timeout(150)
        shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        frames.append(shot.quantize(COLOURS, dither=Image.Dither.NONE))
        times.append(HOLD_MS if at == miss else STEP_MS)
        page.keyboard.press("ArrowRight")
    return frames, times


if __name__ == "__main__":
    main(Path(sys.argv[1]))
