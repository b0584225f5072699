"""WebArena on sites of one's own: which hosts the browser may reach, and how tasks log in."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.chat_server import ChatServer, completion

from terrella.browser.guard import GUARD_HEADER, NetworkGuard, RefusedError
from terrella.core.config import dump, load, rebuild
from terrella.core.config_override import override
from terrella.core.errors import ConfigError, WorldError
from terrella.core.types import Status
from terrella.core.untrusted import read_json
from terrella.worlds.webarena import addresses, env
from terrella.worlds.webarena.addresses import allowed
from terrella.worlds.webarena.env import WebArena
from terrella.worlds.webarena.evaluators import Ending, evaluate
from terrella.worlds.webarena.judges import EndpointJudge
from terrella.worlds.webarena.tasks import SOURCES, _find_module, load_tasks, read_task
from terrella.worlds.webarena.templates import unchecked_row

# --- the allow-list -------------------------------------------------------------------------------


def guard_of(monkeypatch, address, resolved):
    """The guard for one site, with a resolver that always gives the same addresses."""
    monkeypatch.setattr(addresses, "resolve", lambda *_: resolved)
    return NetworkGuard(allow=allowed({"__X__": address}), resolver=lambda *_: resolved)


def test_a_site_at_a_private_address_is_reached():
    guard = NetworkGuard(allow=allowed({"__X__": "http://10.0.0.5:7770"}))
    assert guard.target("10.0.0.5", 7770) == ("10.0.0.5", 7770)
    for host, port in (("10.0.0.5", 22), ("10.0.0.6", 7770), ("127.0.0.1", 7770)):
        with pytest.raises(RefusedError):
            guard.target(host, port)


@pytest.mark.parametrize(
    ("resolved", "pinned"),
    [
        (["192.168.1.9"], "192.168.1.9"),
        (["::1", "127.0.0.1"], "127.0.0.1"),
        (["fd00::7"], "fd00::7"),
        (["2001:4860::1", "192.168.1.9"], "192.168.1.9"),  # a machine at home often has both
    ],
)
def test_a_name_in_the_own_network_is_pinned_to_what_it_was(monkeypatch, resolved, pinned):
    guard = guard_of(monkeypatch, "http://Shop.local/", resolved)
    guard.resolver = lambda *_: ["127.0.0.1"]  # where it points later does not matter
    assert guard.target("shop.local", 80) == (pinned, 80)


def test_a_public_name_is_resolved_by_the_guard_and_link_local_is_never_pinned(monkeypatch):
    guard = guard_of(monkeypatch, "https://shop.example", ["8.8.8.8"])
    assert guard.allow[0].at == "" and guard.target("shop.example", 443) == ("8.8.8.8", 443)
    guard = guard_of(monkeypatch, "http://shop.example", ["169.254.169.254"])
    with pytest.raises(RefusedError):
        guard.target("shop.example", 80)


def test_a_site_without_an_address_is_named(monkeypatch):
    def unknown(host, port):
        raise OSError("Name or service not known")

    monkeypatch.setattr(addresses, "resolve", unknown)
    with pytest.raises(WorldError, match=r"shop\.local:7770 cannot be resolved"):
        allowed({"__X__": "http://shop.local:7770"})
    for address in ("shop.local:7770", "http://", "http://shop:port", "ftp://shop"):
        with pytest.raises(ConfigError, match="is not the address of a site"):
            allowed({"__X__": address})


# --- the public collections -----------------------------------------------------------------------


@pytest.mark.parametrize("name", SOURCES)
def test_a_public_collection_needs_the_addresses_of_its_sites(name):
    """Its tasks would be played, and lost, in the mini-arena's shop."""
    with pytest.raises(WorldError, match=f"the tasks of {name} are not for the mini-arena") as no:
        WebArena.Config(tasks=name).build()
    assert "world.addresses.__SHOPPING__" in no.value.remedy


# --- the judge ------------------------------------------------------------------------------------

LITE_TASK = {
    "task_id": 0,
    "old_task_id": 1,
    "sites": ["shopping"],
    "intent": "Why was order 7 refunded?",
    "start_url": "__SHOPPING__",
    "intent_template_id": 1,
    "require_login": False,
    "eval": {
        "eval_types": ["string_match"],
        "reference_answers": {"fuzzy_match": ["it was broken"]},
    },
}


@pytest.fixture
def opinion():
    """A judge on loopback: only an answer about a break is correct."""

    def grade(body, count):
        right = 'answer: "it broke"' in body["messages"][0]["content"]
        return completion("Correct." if right else "incorrect")

    with ChatServer(grade) as server:
        yield server


def verdict_on(answer, world):
    ending = Ending(answer=answer, url="", page=None, judge=world.judge)
    return evaluate(world.tasks[0], ending)


def test_tasks_of_lite_are_judged_by_the_model_that_the_config_names(started, opinion, tmp_path):
    (tmp_path / "lite.json").write_text(json.dumps([LITE_TASK]))
    settings = ["judge.url=" + opinion.url, "judge.model=grader", f"tasks={tmp_path}/lite.json"]
    named = override(WebArena.Config(), settings)
    # As a Ray worker gets it: through the text of its config.
    sent = rebuild(json.loads(json.dumps(dump(named))))
    world, _ = started(**{name: getattr(sent, name) for name in ("tasks", "judge")})
    assert verdict_on("it broke", world).value == 1.0
    assert verdict_on("because", world).value == 0.0
    asked = [(body["model"], body["temperature"]) for _, _, body in opinion.requests]
    assert set(asked) == {("grader", 0.0)}
    alone, _ = started(tasks=sent.tasks)
    masked = verdict_on("it broke", alone)
    assert masked.status is Status.NO_JUDGE and "world.judge.url" in masked.evidence


def test_a_judge_that_is_down_masks_its_task(started, tmp_path):
    (tmp_path / "lite.json").write_text(json.dumps([LITE_TASK]))
    down = EndpointJudge.Config(url="http://127.0.0.1:9/v1", retries=1)
    world, _ = started(tasks=str(tmp_path / "lite.json"), judge=down)
    assert verdict_on("it broke", world).status is Status.ERROR


def test_a_file_names_no_judge():
    """A manifest is data: its judge's address is not asked."""
    judge = EndpointJudge.Config(url="http://attacker.test/v1")
    again = load(dump(WebArena.Config(judge=judge)), named={WebArena})
    assert again.judge is None


# --- the start page -------------------------------------------------------------------------------


class Browser:
    """A host and a tab in one: a single page, with these headers."""

    def __init__(self, headers):
        self.headers = headers
        self.url = "http://10.0.0.5/"
        self.storage = []
        self.context = SimpleNamespace(browser=SimpleNamespace(is_connected=lambda: False))

    def tab(self, storage):
        self.storage.append(storage)
        return self

    def run(self, work, seconds):
        try:
            work.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("the stub never waits")

    async def go(self, url):
        return self

    async def settle(self):
        pass

    async def rows(self):
        return []


@pytest.fixture
def started(monkeypatch):
    """Starts a world whose browser shows one page."""

    def start(headers=(), **fields):
        browser = Browser(dict(headers))
        monkeypatch.setattr(env, "browser_for", lambda settings: browser)
        sites = {"__SHOPPING__": "http://10.0.0.5", "__SHOPPING_ADMIN__": "http://10.0.0.6"}
        config = WebArena.Config(**{"tasks": "mini", "addresses": sites, **fields})
        return config.build(), browser

    return start


def test_an_episode_does_not_begin_on_a_page_of_the_guard(started):
    world, _ = started({GUARD_HEADER: "shop.test:80 is not on the allow-list"})
    with pytest.raises(WorldError, match=r"did not open: http://10\.0\.0\.5/: shop\.test:80 is no"):
        world.reset(seed=0)
    world, _ = started({"content-type": "text/html"})
    world.reset(seed=0)


# --- logins ---------------------------------------------------------------------------------------

AUTO_LOGIN_WRITES = {
    "gitlab_state.json",
    "gitlab.reddit_state.json",
    "gitlab.shopping_state.json",
    "gitlab.shopping_admin_state.json",
    "reddit_state.json",
    "shopping_state.json",
    "shopping.shopping_admin_state.json",
    "shopping_admin_state.json",
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_public_task_names_the_login_that_its_file_names(name):
    try:
        tasks = load_tasks(name)
    except WorldError as missing:
        pytest.skip(str(missing))
    module, path, dialect, _ = SOURCES[name]
    rows = read_json(_find_module(module) / path)
    for task, row in zip(tasks, rows, strict=True):
        if dialect != "verified":
            assert task.login == Path(row["storage_state"] or "").name
        elif set(row["sites"]) <= {"map", "wikipedia"}:
            assert task.login == ""
        else:
            assert task.login in AUTO_LOGIN_WRITES


def test_verified_tasks_log_in_as_those_of_webarena_do():
    """They have the same ids. WebArena's two tasks of map and administration log in nowhere."""
    try:
        before, after = load_tasks("webarena"), load_tasks("webarena_verified")
    except WorldError as missing:
        pytest.skip(str(missing))
    logins = {task.task_id: task.login for task in before}
    other = [task for task in after if logins[task.task_id] != task.login]
    assert [task.sites for task in other] == [("map", "shopping_admin")] * 2


def row(storage_state):
    made = unchecked_row("Sing.", ("reddit", "gitlab"), "__SHOPPING__")
    return made | {"storage_state": storage_state}


@pytest.mark.parametrize("path", ["/etc/cron.d/x_state.json", "../../x_state.json", "x_state.json"])
def test_only_the_name_of_a_login_is_taken_from_a_task_file(path):
    assert read_task(row(path), "webarena").login == "x_state.json"


def test_a_task_gets_its_own_login_or_none_and_a_missing_one_is_named(started, tmp_path):
    world, browser = started(cookies=str(tmp_path))
    (tmp_path / "gitlab.reddit_state.json").write_text("{}")
    world.begin(read_task(row("./.auth/gitlab.reddit_state.json"), "webarena"))
    world.begin(read_task(row(None), "webarena"))
    assert browser.storage == [str(tmp_path / "gitlab.reddit_state.json"), None]
    for name in ("./.auth/reddit_state.json", ".."):
        with pytest.raises(WorldError, match=r"needs the login .*, which is missing"):
            world.begin(read_task(row(name), "webarena"))
    # A task in words logs in as the task does beside which it was written.
    world.tasks = [read_task(row("gitlab.reddit_state.json"), "webarena")]
    world.reset(seed=0, options={"written": world.draft("Dance.", "Sing.").task})
    assert world.task.intent == "Dance."
    assert browser.storage[-1] == str(tmp_path / "gitlab.reddit_state.json")


def test_a_task_in_words_begins_where_a_written_one_did_and_nowhere_by_default(started):
    world, _ = started()
    first = world.tasks[0]
    beside = read_task(unchecked_row("Sing.", ("map",), "__MAP__/x", "map_state.json"), "webarena")
    world.tasks = [first, beside]
    written = world.draft("Dance.", "Sing.").task
    world.tasks = [first]
    again = read_task(json.loads(world.draft("Jump.", written).task), "vab")
    assert (again.intent, again.start_urls, again.login, again.sites) == (
        "Jump.",
        ("__MAP__/x",),
        "map_state.json",
        ("map",),
    )
    lost = world.draft("Jump.", "Sing.")
    assert not lost.task and "begin beside: 'Sing.'" in lost.reason
