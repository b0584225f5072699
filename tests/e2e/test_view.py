"""Real Chromium opens the pages that `terrella view` writes: it steps, filters, forks, and reads what is marked."""

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.made_episodes import EPISODES, extras_of, made
from tests.support.made_models import Lying, by_chance, data_of, imagination_of

playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra: pip install 'terrella[web]'")

from terrella.core.config import override
from terrella.core.types import Text
from terrella.policies.basic import Random
from terrella.serve.settings import ServeSettings
from terrella.show.page import write_pages
from terrella.show.page_data import PageBook
from terrella.show.progress import SilentProgress
from terrella.stages import view as view_stage
from terrella.stages.collect import Collect
from terrella.stages.view import View
from terrella.worlds.frozen_lake import FrozenLake

CHROMIUM = next((path for path in map(Path, ("/usr/bin/chromium", "/usr/bin/chromium-browser")) if path.exists()), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as made_by:
        browser = made_by.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Opens a file; whatever the page complains about fails the test."""
    pages = []

    def opened(path, **options):
        page = browser.new_page(**options)
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda message: message.type == "error" and page.complaints.append(message.text))
        page.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else
                page.complaints.append(request.url))  # fmt: skip
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        assert page.complaints == []
        page.close()


@pytest.fixture(scope="module")
def lake_page(tmp_path_factory):
    """A store of 1,000 episodes, asked about by a model that lies in a third of the steps."""
    folder, config = tmp_path_factory.mktemp("lake"), FrozenLake.Config(size=3, success_rate=1.0)
    Collect(Collect.Config(world=config, policy=Random.Config(), out=folder, episodes=1000)).run(SilentProgress())
    liar = imagination_of(Lying(config.build(), by_chance(0.3)), data=data_of(config.build()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view_stage, "load_imagination", lambda folder, samples: liar)
        (page,) = View(override(View.Config(run=folder, model=folder), ["predicted=1000", "forked=1000"])).write()
    return page


def test_a_thousand_episodes_open_in_two_seconds(lake_page, browser, open_page):
    seconds = []
    for _ in range(3):  # the best of three: a busy machine must not decide
        began = time.perf_counter()
        page = open_page(lake_page)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 2.0
    assert page.locator("#count").inner_text() == "1000 of 1000 episodes"
    assert page.get_by_role("option").count() < 100  # only rows in view exist


def test_step_filter_and_fork_by_keyboard(lake_page, open_page):
    page = open_page(lake_page)
    page.select_option("#filter-look", "wrong")
    page.select_option("#filter-ending", "lost")
    shown, all_of_them = map(int, page.locator("#count").inner_text().replace("episodes", "").split("of"))
    assert 0 < shown < all_of_them == 1000
    for _ in range(12):  # to the first step that was predicted wrongly
        page.keyboard.press("ArrowRight")
        if page.get_by_role("heading", name="Predicted: wrong").count():
            break
    assert page.locator(".predicted.wrong .differs").count() > 0  # what differs from the real one is marked
    page.keyboard.press("Home")
    assert "beginning" in page.locator("#step").inner_text()
    page.keyboard.press("2")
    assert (
        page.get_by_role("heading", name="Really").is_visible()
        and page.get_by_role("heading", name="Imagined").is_visible()
    )
    assert page.locator(".forks button.chosen").inner_text().startswith("Down")
    assert page.locator(".forks .grid").count() == 2
    where = page.url
    page.keyboard.press("j")
    assert page.url != where and "#e=" in page.url  # a link leads to the episode and the step


def test_a_link_opens_its_step_and_the_ribbon_is_a_slider(lake_page, open_page):
    page = open_page(lake_page)
    page.goto(f"{lake_page.as_uri()}#e=7&s=1")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.locator("#episode-title").inner_text().startswith("frozen_lake 7:")
    slider = page.get_by_role("slider", name="Step, with its risk")
    assert slider.get_attribute("aria-valuenow") == "1" and "step 1" in slider.get_attribute("aria-valuetext")
    slider.click(position={"x": 2, "y": 5})
    assert page.locator("#step").inner_text().startswith("step 1 of")


@pytest.mark.parametrize("kind", list(EPISODES))
def test_every_modality_marks_what_was_predicted_wrongly(kind, tmp_path, open_page):
    book = PageBook(kind, threshold=0.25)
    episode, wrong = EPISODES[kind]
    book.add(episode, 0, extras_of(episode, wrong))
    (path,) = write_pages(book.data(), tmp_path, most_bytes=10**8)
    page = open_page(path)
    page.keyboard.press("End")
    marks = {"grid": ".cell.differs", "text": "mark", "state": "tr.modified, tr.removed", "tree": ".created, .removed",
             "frames": "canvas.difference"}  # fmt: skip
    assert page.locator(f".predicted.wrong :is({marks[kind]})").count() > 0
    assert "different" in page.locator(".predicted [role=img]").get_attribute("aria-label")
    if kind == "frames":
        page.wait_for_function("document.querySelector('canvas.difference').title.includes('mean difference')")
        assert page.locator(".predicted img").first.evaluate("image => image.naturalWidth") == 32


def test_tokens_are_coloured_by_what_is_chosen(tmp_path, open_page):
    episode, wrong = EPISODES["state"]
    tokens = {"prompt": ["<obs>", "3"], "texts": ["up", "<end>", "4", "up"], "model": [1, 1, 0, 1],
              "logprobs": [-0.1, -2.5, 0.0, -0.5], "advantages": [-0.7, -0.7, 0.0, -0.7]}  # fmt: skip
    book = PageBook("tokens")
    book.add(episode, 0, extras_of(episode, wrong).__class__(tokens=tokens))
    book.curves = [{"name": "reward", "steps": [1, 2, 3], "values": [0.1, 0.4, 0.8]}]
    page = open_page(write_pages(book.data(), tmp_path, most_bytes=10**8)[0])
    assert page.get_by_role("img", name="reward: from 0.1 to 0.8").count() == 1
    written = page.locator(".tokens .token:not([title='the prompt'])")

    def colours():
        return written.evaluate_all("all => all.map(token => token.style.background)")

    assert [bool(colour) for colour in colours()] == [True, True, False, True]
    page.select_option("#token-mode", "advantage")
    assert all("--orange" in colour for colour in colours() if colour)  # pushed down
    page.select_option("#token-mode", "logprob")
    shares = [int(colour.split("%")[0].split()[-1]) for colour in colours() if colour]
    assert shares[1] > shares[2] > shares[0]  # the less likely, the stronger


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["tiny_counter", "tiny_lake_model"])
def test_a_training_run_shows_its_curves_and_its_tokens(recipe, tmp_path, open_page):
    pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
    import tests.support.quiet_trl  # noqa: F401

    from terrella.recipes import find_recipe
    from terrella.stages.rlvr import Rlvr

    small = ["rlvr.steps=3", "rlvr.groups=3", "rlvr.group_size=4", "warmup_rows=64", "evaluate_on=4", "record_every=2"]
    stage = Rlvr(override(find_recipe(recipe)().replace(out=tmp_path / "run"), small))
    with ThreadPoolExecutor(1) as beside:  # this thread is taken by the event loop of the browser's driver
        beside.submit(stage.run, SilentProgress()).result()
    page = open_page(View(View.Config(run=tmp_path / "run")).write()[0])
    assert page.locator("#count").inner_text() == "24 of 24 episodes"  # steps 0 and 2, 3 groups of 4
    assert page.locator("figure").count() >= 5
    model, world = (page.locator(f".tokens .token{kind}").count() for kind in (":not(.world)", ".world"))
    assert model > 0 and world >= 1
    page.keyboard.press("ArrowRight")
    if recipe == "tiny_lake_model":
        assert page.get_by_role("heading", name="Predicted").count() == 1
    flat = page.locator("#filter-look option[value=flat]").inner_text()
    assert int(flat.split("(")[1].rstrip(")")) % 4 == 0  # whole groups


def test_a_live_page_tries_any_action_and_goes_on_from_there(tmp_path, browser):
    pytest.importorskip("uvicorn", reason="needs the extra: pip install 'terrella[serve]'")
    from tests.support.served import running_app

    config = FrozenLake.Config(size=3, success_rate=1.0)
    Collect(Collect.Config(world=config, policy=Random.Config(), out=tmp_path, episodes=20)).run(SilentProgress())
    with running_app(View(View.Config(run=tmp_path, forked=0)).live_app("a-live-token", ServeSettings.Config())) as url:
        page = browser.new_page()
        assert page.goto(f"{url}/").status == 401 and page.goto(f"{url}/?token=wrong").status == 401
        assert page.request.post(f"{url}/fork", data="{}").status == 401
        page.goto(f"{url}/?token=a-live-token")
        page.wait_for_selector("html[data-ready]")
        page.keyboard.press("3")
        page.get_by_role("heading", name="Really").wait_for()
        assert page.locator(".forks button.chosen").inner_text().startswith("Right")
        real = config.build()
        real.reset(
            seed=0, options={"noise_seed": int(page.locator("main header p").inner_text().split("noise ")[1][0])}
        )
        first = real.step("Right")[0].text
        shown = lambda: page.locator(".forks .pane").first.locator(".cell").all_inner_texts()  # noqa: E731
        assert "".join(shown()) == first.replace("\n", "")
        page.locator("button.then", has_text="Down").click()
        page.get_by_text("after Right").wait_for()
        page.close()


def test_the_page_about_it_can_be_followed(tmp_path):
    """docs/see.md: collect, view, report."""
    words = (Path(__file__).parents[2] / "docs/see.md").read_text()
    for line in "".join(re.findall(r"```bash\n(.*?)```", words, re.S)).strip().splitlines():
        command = [sys.executable, "-m", "terrella.cli", *line.split()[1:]]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stderr[-2000:]}"
    assert (tmp_path / "runs/seen/view/view.html").stat().st_size > 20_000
    assert "| seen | 200 |" in (tmp_path / "report/report.md").read_text()


def test_hostile_text_stays_text(tmp_path, open_page):
    bad = Text("<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>")
    book = PageBook("<script>document.title='owned'</script>")
    book.add(made("<b>x</b>", [bad, bad], ["<i>go</i>"]), 0)
    page = open_page(write_pages(book.data(), tmp_path, most_bytes=10**8)[0])
    page.keyboard.press("ArrowRight")
    assert "owned" not in page.title().replace("'owned'", "") and page.locator("main img, main b, main i").count() == 0


def test_on_a_phone_in_the_dark_nothing_sticks_out_and_all_has_a_name(lake_page, open_page):
    page = open_page(lake_page, viewport={"width": 375, "height": 700}, color_scheme="dark")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    nameless = (
        """all => all.filter(e => !(e.ariaLabel || e.labels?.length || e.innerText.trim())).map(e => e.outerHTML)"""
    )
    assert page.locator("button, select, input, a, [role=slider], [role=listbox]").evaluate_all(nameless) == []
    page.keyboard.press("?")
    assert page.get_by_role("dialog", name="Keys").is_visible()
