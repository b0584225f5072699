"""How a finished web task is judged: strings, addresses, pages and databases, by the rules of the task's dialect.

No `eval`: expressions of task files are parsed (`expressions.py`) and call named helpers. Checks that ask for an
opinion go to a pluggable judge; without one the task is masked, and `judge_free` says what the other checks found.
    verdict = evaluate(task, Ending(answer="42", url="http://shop.test/", page=page, addresses=arena.addresses()))
"""

from __future__ import annotations

import html
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qs, urlparse

from terrella.browser.events import NetworkEvent
from terrella.core.errors import WorldError
from terrella.core.types import Status, Verdict
from terrella.worlds.webarena.expressions import PAGE, parse_call
from terrella.worlds.webarena.network import judge_verified
from terrella.worlds.webarena.tasks import PageCheck, Query, WebTask

OR = " |OR| "
LAST_URL = "__last_url__"


class PageProbe(Protocol):
    """A page that checks can look at; it is the checks' own, not the agent's."""

    def open(self, url: str) -> None:
        """Load an address and wait until it is there."""
        ...

    def read(self, expression: str) -> str:
        """The value of a locator expression as text; empty when it finds nothing."""
        ...

    def content(self) -> str:
        """The whole document."""
        ...


Judge = Callable[[str, str, str], bool]
"""(what was asked, reference, answer) -> right or not. The answer is untrusted text."""


@dataclass(kw_only=True)
class Ending:
    """What is left of an episode when it is judged."""

    answer: str
    url: str
    page: PageProbe
    addresses: Mapping[str, str] = field(default_factory=dict[str, str])
    rows: Callable[[str, str], list[tuple[Any, ...]]] | None = None
    """(site, SELECT) -> rows, read-only."""
    events: Sequence[NetworkEvent] = ()
    judge: Judge | None = None
    fetch: Callable[[str], Any] | None = None
    """Path on the shop's REST interface -> JSON; only helpers of the original shop need it."""

    def place(self, text: str) -> str:
        """An address of a task file with its placeholders filled in."""
        for name, address in sorted(self.addresses.items(), key=lambda pair: -len(pair[0])):
            text = text.replace(name, address)
        return text


class NeedsJudgeError(Exception):
    """A check asks for an opinion and there is nobody to give it."""


def evaluate(task: WebTask, ending: Ending) -> Verdict:
    """The verdict: the product of all checks, each of them a part."""
    checks: dict[str, Callable[[], float]] = {
        "string_match": lambda: match_answer(task, ending), "url_match": lambda: match_url(task, ending),
        "program_html": lambda: _all(check_page(page, task, ending) for page in task.pages),
        "db_query": lambda: _all(check_rows(query, ending) for query in task.queries),
        "verified": lambda: judge_verified(task.evaluators, ending.answer, ending.url, ending.events, ending.place),
    }  # fmt: skip
    wanted = ("verified",) if task.dialect == "verified" else task.eval_types
    parts: dict[str, float] = {}
    missing = ""
    for name in wanted:
        try:
            parts[name] = checks[name]()
        except NeedsJudgeError as error:
            missing = str(error)
    judge_free = math.prod(parts.values())
    if missing and judge_free > 0:
        return Verdict(value=None, parts={**parts, "judge_free": judge_free}, status=Status.ERROR, evidence=missing)
    return Verdict(value=judge_free, parts={**parts, "judge_free": judge_free})


def _all(found: Any) -> float:
    return float(all(list(found)))


# --- strings ------------------------------------------------------------------------------------------------------


def clean(text: str, dialect: str) -> str:
    """Lower case, without quotes around it (and, in the first dialect, without spaces)."""
    text = text.strip() if dialect != "vab" else text
    for mark in ("'", '"'):
        if len(text) > 1 and text.startswith(mark) and text.endswith(mark):
            text = text[1:-1]
    return text.lower()


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def includes(reference: str, text: str, dialect: str, *, alone: bool) -> bool:
    """Whether a text holds the reference; very short ones must be a word of their own."""
    wanted, found = clean(reference, dialect), clean(text, dialect)
    is_short = len(wanted) == 1 if dialect != "vab" else len(_words(wanted)) == 1
    return wanted in _words(found) if alone and is_short else wanted in found


def holds(rule: str, wanted: Any, text: str, task: WebTask, ending: Ending, *, strings: bool) -> bool:
    """One rule of a reference against a text; `strings` is False for what was read from a page."""
    dialect = task.dialect
    several = [wanted] if isinstance(wanted, str) else list(wanted)
    if rule == "exact_match":
        return clean(several[0], dialect) == clean(text, dialect)
    if rule == "must_include":
        alone = strings and len(several) == 1 if dialect != "vab" else strings
        return all(any(includes(one, text, dialect, alone=alone) for one in each.split(OR)) for each in several)
    if rule == "must_exclude":
        return not any(includes(one, text, dialect, alone=strings) for one in several)
    if rule == "one_of":
        return any(clean(one, dialect) == clean(text, dialect) for one in several)
    if rule == "required_values":
        return all(any(_inequality(one, text) for one in each.split(OR)) for each in several)
    return _judged(several, text, task, ending)


def _inequality(rule: str, text: str) -> bool:
    signs = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}
    found = re.fullmatch(r"\s*(>=|<=|==|>|<)?\s*(-?[\d.,]+)\s*", rule)
    number = re.search(r"-?\d[\d,]*\.?\d*", text)
    if found is None or number is None:
        return False
    value, bound = float(number.group().replace(",", "")), float(found[2].replace(",", ""))
    return bool(signs[found[1] or "=="](value, bound))


def _judged(references: list[str], text: str, task: WebTask, ending: Ending) -> bool:
    """An opinion: `N/A` may be said outright; in the Lite dialect all references are one question."""
    if references == ["N/A"] and clean(text, task.dialect) == "n/a":
        return True
    if ending.judge is None:
        raise NeedsJudgeError(f"task {task.task_id} needs a judge")
    asked = [task.string_note] if references == ["N/A"] else references
    if task.dialect == "vab":
        asked = [", ".join(asked)]
    return all(ending.judge(task.intent, reference, text) for reference in asked)


def match_answer(task: WebTask, ending: Ending) -> float:
    """All rules of the reference answers hold."""
    return _all(holds(rule, want, ending.answer, task, ending, strings=True) for rule, want in task.answers.items())


# --- addresses ----------------------------------------------------------------------------------------------------


def match_url(task: WebTask, ending: Ending) -> float:
    """Where the agent ended: exactly there, or below there with these parameters."""
    references = [ending.place(one).rstrip("/") for one in task.reference_url.split(OR)]
    url = ending.url.rstrip("/")
    if task.dialect == "vab":
        url = url.replace("localhost", "127.0.0.1")
        references = [one.replace("localhost", "127.0.0.1") for one in references]
        rule = (lambda one: one in url) if task.url_note == "GOLD in PRED" else (lambda one: one == url)
        return float(any(rule(one) for one in references))
    parsed = urlparse(url)
    query = parse_qs(parsed.query)
    bases = [urlparse(one).netloc + urlparse(one).path for one in references]
    allowed: dict[str, set[str]] = {}
    for one in references:
        for key, values in parse_qs(urlparse(one).query).items():
            allowed.setdefault(key, set()).update(values)
    at_base = any(base in parsed.netloc + parsed.path for base in bases)
    return float(at_base and all(values & set(query.get(key, ())) for key, values in allowed.items()))


# --- pages and databases ------------------------------------------------------------------------------------------


def check_page(check: PageCheck, task: WebTask, ending: Ending) -> bool:
    """What a page shows after the episode."""
    address = ending.place(check.url).replace(LAST_URL, ending.url)
    if address.startswith("func:"):
        address = str(call_helper(address, ending))
    ending.page.open(ending.url if address == "last" else address)
    for expression in check.prepare:
        ending.page.read(expression)
    if not check.locator.strip():
        shown = ending.page.content()
    elif check.locator.startswith("func:"):
        shown = str(call_helper(check.locator.replace(LAST_URL, ending.url), ending))
    else:
        shown = ending.page.read(check.locator)
    shown = html.unescape(shown) if task.dialect == "webarena" else shown
    return all(holds(rule, want, shown, task, ending, strings=False) for rule, want in check.required.items())


def check_rows(query: Query, ending: Ending) -> bool:
    """What a site's database holds after the episode."""
    if ending.rows is None:
        raise WorldError("webarena", f"cannot look into the database of {query.site}", "run the mini-arena's sites")
    return [tuple(row) for row in ending.rows(query.site, query.query)] == [tuple(row) for row in query.expected]


# --- helpers that task files may call -----------------------------------------------------------------------------


def call_helper(expression: str, ending: Ending) -> Any:
    """The value of a `func:` expression; only the helpers below can be called."""
    call = parse_call(expression)
    if call.name not in HELPERS:
        raise WorldError("webarena", f"unknown helper {call.name!r}", f"known: {', '.join(HELPERS)}")
    arguments = [argument for argument in call.arguments if argument != PAGE]
    return HELPERS[call.name](ending, *map(str, arguments))


def post_url(ending: Ending, url: str) -> str:
    """The address of the forum post that a comment's address belongs to."""
    parsed = urlparse(url)
    parts = parsed.path.split("/")
    if len(parts) < 4 or parts[1] != "f":
        return url
    return f"{parsed.scheme}://{parsed.netloc}/f/{parts[2]}/{parts[3]}/"


def member_role(ending: Ending, account: str) -> str:
    """The role of a project member on the members page."""
    names = "[...document.querySelectorAll(\"td[data-label='Account'] span.gl-avatar-labeled-sublabel\")]"
    index = f"{names}.findIndex(one => one.outerText === '@' + {account!r})"
    return ending.page.read(f"document.querySelectorAll('td.col-max-role span')[{index}].outerText")


def _fetch(ending: Ending, path: str) -> Any:
    if ending.fetch is None:
        raise WorldError("webarena", "a check asks the shop's REST interface", "give the world a `fetch`")
    return ending.fetch(path)


def latest_order_url(ending: Ending) -> str:
    """The address of the newest order."""
    path = (
        "/rest/V1/orders?searchCriteria[sortOrders][0][field]=created_at&"
        "searchCriteria[sortOrders][0][direction]=DESC&searchCriteria[pageSize]=1"
    )
    order = int(_fetch(ending, path)["items"][0]["increment_id"])
    return ending.place(f"__SHOPPING__/sales/order/view/order_id/{order}/")


def _latest_review(ending: Ending, sku: str) -> Mapping[str, Any]:
    found = _fetch(ending, f"/rest/V1/products/{sku}/reviews")
    return dict(found[-1]) if found else {}


def review_author(ending: Ending, sku: str) -> str:
    """Who wrote the newest review of a product."""
    return str(_latest_review(ending, sku).get("nickname", ""))


def review_rating(ending: Ending, sku: str) -> str:
    """What the newest review of a product gave it."""
    ratings = _latest_review(ending, sku).get("ratings") or [{}]
    return str(ratings[0].get("percent", ""))


HELPERS: dict[str, Callable[..., str]] = {
    "reddit_get_post_url": post_url, "gitlab_get_project_memeber_role": member_role,
    "shopping_get_latest_order_url": latest_order_url, "shopping_get_sku_latest_review_author": review_author,
    "shopping_get_sku_latest_review_rating": review_rating,
}  # fmt: skip
