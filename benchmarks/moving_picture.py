"""Draws the moving picture of the README from a run: docs/pictures/view_wrong_step.gif.

    terrella train-world-model sokoban_model --out runs/sokoban --set transitions=8000
    terrella certify runs/sokoban --set step_error=0.05 --set exploited_on=4 --set plan_depth=2
    terrella view runs/sokoban
    python benchmarks/moving_picture.py runs/sokoban/view/view.html
Needs Chromium and Pillow. The episode is the first in which a step that the certificate does not
trust is predicted wrongly, after steps that it trusts and that are right.
"""

import io
import sys
from pathlib import Path

import common
from PIL import Image
from playwright.sync_api import sync_playwright

from terrella.browser.launch import find_chromium

TARGET = common.PICTURES / "view_wrong_step.gif"
SIZE = {"width": 1180, "height": 600}
STEP_MS, HOLD_MS = 900, 3200
COLOURS = 64
TRIED = 150
"""Episodes that are looked at."""


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
    """Open an episode; return the number of its first wrong step."""
    fallback = None
    for number in range(TRIED):
        bars = page.locator(".ribbon .bar").evaluate_all(
            "all => all.map(bar => bar.getAttribute('class'))"
        )
        circles = page.locator(".ribbon .miss").evaluate_all(
            "all => all.map(c => parseFloat(c.getAttribute('cx')))"
        )
        misses = [round(x / 100 * len(bars) + 0.5) for x in circles]
        if misses and misses[0] > 2:
            first = misses[0]
            trusted = all("safe" in bar for bar in bars[: first - 1])
            if trusted and "risky" in bars[first - 1] and len(bars) <= 12:
                return first
            fallback = fallback or (number, first)
        page.keyboard.press("j")
    raise SystemExit(f"no such episode among {TRIED}; the nearest is {fallback}")


def record(page, miss):
    """A picture of each step up to two after the wrong one, which is shown longer."""
    frames, times = [], []
    page.keyboard.press("Home")
    for at in range(miss + 3):
        if at:
            page.keyboard.press("ArrowRight")
        page.wait_for_timeout(150)
        shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        frames.append(shot.quantize(COLOURS, dither=Image.Dither.NONE))
        times.append(HOLD_MS if at == miss else STEP_MS)
    return frames, times


if __name__ == "__main__":
    main(Path(sys.argv[1]))
