"""The checks of a finished web task: strings, addresses, pages and databases.

Each task is judged by the rules of its dialect. There is no `eval`: the expressions of task files
are parsed (`expressions.py`) and can only call named helpers. Checks that need an opinion go to a
pluggable judge. Without one the task is masked, and the part `judge_free` holds the result of the
other checks.
    ending = Ending(answer="42", url="http://shop.test/", page=page, addresses=arena.addresses())
    verdict = evaluate(task, ending)
"""

from __future__ import annotations

import html
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol
from urllib.parse import parse_qs, urlparse

from terrella.browser.events import NetworkEvent
from terrella.core.errors import WorldError
from terrella.core.judge import failure, find_cause
from terrella.core.types import Status, Verdict
from terrella.worlds.webarena.expressions import PAGE, parse_call
from terrella.worlds.webarena.network import judge_verified
from terrella.worlds.webarena.tasks import PageCheck, Query, WebTask, fill_placeholders

OR = " |OR| "
LAST_URL = "__last_url__"


class PageProbe(Protocol):
    """A page that checks can read; it is not the agent's page."""

    def open(self, url: str) -> None:
        """Load an address and wait until the page has settled."""
        ...

    def read(self, expression: str) -> str:
        """The value of a locator expression as text; empty when it finds nothing."""
        ...

    def content(self) -> str:
        """The whole document."""
        ...


Judge = Callable[[str, str, str], bool]
"""(task, reference, answer) -> whether the answer is right. The answer is untrusted text."""


@dataclass(kw_only=True)
class Ending:
    """The end of an episode, as the checks see it."""

    answer: str
    url: str
    page: PageProbe
    addresses: Mapping[str, str] = field(default_factory=dict[str, str])
    query_rows: Callable[[str, str], list[tuple[Any, ...]]] | None = None
    """(site, SELECT statement) -> rows, read-only."""
    events: Sequence[NetworkEvent] = ()
    judge: Judge | None = None
    fetch: Callable[[str], Any] | None = None
    """Path on the shop's REST API -> JSON; only needed by helpers of the original shop."""

    def resolve(self, text: str) -> str:
        """Fill in the placeholders of an address from a task file."""
        return fill_placeholders(text, self.addresses)


class NeedsJudgeError(Exception):
    """A check needs an opinion, but there is no judge."""


def evaluate(task: WebTask, ending: Ending) -> Verdict:
    """The verdict on a task: the product of its checks, each reported as a part.

    A check that fails is run on an empty ending too. If it works there, the agent's answer, address
    or requests broke it, and the task is lost; otherwise the verdict is masked.
    """
    return find_cause(partial(_evaluate, task), ending, control=empty_ending(task, ending))


def empty_ending(task: WebTask, ending: Ending) -> Ending:
    """The ending of an agent that answers nothing where the task begins."""
    start = next(iter(task.start_urls), "")
    return replace(ending, answer="", url=ending.resolve(start), events=())


def _evaluate(task: WebTask, ending: Ending) -> Verdict:
    try:
        return _product_of_checks(task, ending)
    except Exception as error:  # noqa: BLE001  any failure is counted, and its cause is looked for
        return failure("webarena", error)


def _product_of_checks(task: WebTask, ending: Ending) -> Verdict:
    checks: dict[str, Callable[[], float]] = {
        "string_match": lambda: match_answer(task, ending),
        "url_match": lambda: match_url(task, ending),
        "program_html": lambda: _all(check_page(page, task, ending) for page in task.pages),
        "db_query": lambda: _all(check_rows(query, ending) for query in task.queries),
        "verified": lambda: judge_verified(
            task.evaluators, ending.answer, ending.url, ending.events, ending.resolve
        ),
    }
    wanted = ("verified",) if task.dialect == "verified" else task.eval_types
    if not wanted:  # a task that was written for practice; an empty product would be a success
        return Verdict(value=None, status=Status.NO_JUDGE, evidence="the task has no check")
    parts: dict[str, float] = {}
    missing = ""
    for name in wanted:
        try:
            parts[name] = checks[name]()
        except NeedsJudgeError as error:
            missing = str(error)
    judge_free = math.prod(parts.values())
    parts["judge_free"] = judge_free
    if missing and judge_free > 0:
        return Verdict(value=None, parts=parts, status=Status.NO_JUDGE, evidence=missing)
    return Verdict(value=judge_free, parts=parts)


def _all(results: Iterable[bool]) -> float:
    return float(all(list(results)))  # all checks run, also after one has failed


# --- strings --------------------------------------------------------------------------------------


def clean(text: str, dialect: str) -> str:
    """Lower case, without enclosing quotes and, except in `vab`, without outer spaces."""
    text = text.strip() if dialect != "vab" else text
    for mark in ("'", '"'):
        if len(text) > 1 and text.startswith(mark) and text.endswith(mark):
            text = text[1:-1]
    return text.lower()


def _tokens(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def includes(reference: str, text: str, dialect: str, *, alone: bool) -> bool:
    """Whether a text contains the reference; `alone` makes short ones match whole words only."""
    wanted = clean(reference, dialect)
    shown = clean(text, dialect)
    is_short = len(wanted) == 1 if dialect != "vab" else len(_tokens(wanted)) == 1
    return wanted in _tokens(shown) if alone and is_short else wanted in shown


def holds(
    rule: str, wanted: Any, text: str, task: WebTask, ending: Ending, *, strings: bool
) -> bool:
    """Check a text against one rule; `strings` is False for text that was read from a page."""
    dialect = task.dialect
    references = [wanted] if isinstance(wanted, str) else list(wanted)
    if rule == "exact_match":
        return clean(references[0], dialect) == clean(text, dialect)
    if rule == "must_include":
        alone = strings and len(references) == 1 if dialect != "vab" else strings
        return all(
            any(includes(option, text, dialect, alone=alone) for option in reference.split(OR))
            for reference in references
        )
    if rule == "must_exclude":
        return not any(includes(item, text, dialect, alone=strings) for item in references)
    if rule == "one_of":
        return any(clean(item, dialect) == clean(text, dialect) for item in references)
    if rule == "required_values":
        return all(
            any(_inequality(option, text) for option in reference.split(OR))
            for reference in references
        )
    return _judged(references, text, task, ending)


def _inequality(rule: str, text: str) -> bool:
    signs = {
        ">=": operator.ge,
        "<=": operator.le,
        ">": operator.gt,
        "<": operator.lt,
        "==": operator.eq,
    }
    match = re.fullmatch(r"\s*(>=|<=|==|>|<)?\s*(-?[\d.,]+)\s*", rule)
    number = re.search(r"-?\d[\d,]*\.?\d*", text)
    if match is None or number is None:
        return False
    value = float(number.group().replace(",", ""))
    bound = float(match[2].replace(",", ""))
    return bool(signs[match[1] or "=="](value, bound))


def _judged(references: list[str], text: str, task: WebTask, ending: Ending) -> bool:
    """Ask the judge; an explicit `N/A` needs none.

    In the `vab` dialect all references are judged in one call.
    """
    if references == ["N/A"] and clean(text, task.dialect) == "n/a":
        return True
    if ending.judge is None:
        raise NeedsJudgeError(f"task {task.task_id} needs a judge: set world.judge.url and .model")
    judged = [task.string_note] if references == ["N/A"] else references
    if task.dialect == "vab":
        judged = [", ".join(judged)]
    return all(ending.judge(task.intent, reference, text) for reference in judged)


def match_answer(task: WebTask, ending: Ending) -> float:
    """1 when the answer fulfils all rules of the reference."""
    return _all(
        holds(rule, want, ending.answer, task, ending, strings=True)
        for rule, want in task.answers.items()
    )


# --- addresses ------------------------------------------------------------------------------------


def match_url(task: WebTask, ending: Ending) -> float:
    """1 when the final address equals a reference, or lies below it with its parameters."""
    references = [ending.resolve(url).rstrip("/") for url in task.reference_url.split(OR)]
    url = ending.url.rstrip("/")
    if task.dialect == "vab":
        url = url.replace("localhost", "127.0.0.1")
        references = [reference.replace("localhost", "127.0.0.1") for reference in references]
        if task.url_note == "GOLD in PRED":
            return float(any(reference in url for reference in references))
        return float(url in references)
    actual = urlparse(url)
    query = parse_qs(actual.query)
    required: dict[str, set[str]] = {}
    at_base = False
    for reference in map(urlparse, references):
        at_base = at_base or reference.netloc + reference.path in actual.netloc + actual.path
        for key, values in parse_qs(reference.query).items():
            required.setdefault(key, set()).update(values)
    has_query = all(values & set(query.get(key, ())) for key, values in required.items())
    return float(at_base and has_query)


# --- pages and databases --------------------------------------------------------------------------


def check_page(check: PageCheck, task: WebTask, ending: Ending) -> bool:
    """Check the content of a page after the episode."""
    address = ending.resolve(check.url)
    if address.startswith("func:"):
        address = str(call_helper(address, ending))
    elif address == "last":
        address = ending.url
    else:
        address = address.replace(LAST_URL, ending.url)
    ending.page.open(address)
    for expression in check.prepare:
        ending.page.read(expression)
    if not check.locator.strip():
        shown = ending.page.content()
    elif check.locator.startswith("func:"):
        shown = str(call_helper(check.locator, ending))
    else:
        shown = ending.page.read(check.locator)
    shown = html.unescape(shown) if task.dialect == "webarena" else shown
    return all(
        holds(rule, want, shown, task, ending, strings=False)
        for rule, want in check.required.items()
    )


def check_rows(query: Query, ending: Ending) -> bool:
    """Check the content of a site's database after the episode."""
    if ending.query_rows is None:
        raise WorldError(
            "webarena",
            f"cannot query the database of {query.site}",
            "run the mini-arena: terrella sites up",
        )
    rows = [tuple(row) for row in ending.query_rows(query.site, query.query)]
    return rows == [tuple(row) for row in query.expected]


# --- helpers that task files may call -------------------------------------------------------------


def call_helper(expression: str, ending: Ending) -> Any:
    """Evaluate a `func:` expression; only the helpers below can be called.

    The expression is the task file's. The agent's address is data: it takes the place of an
    argument after the expression has been parsed.
    """
    call = parse_call(expression)
    if call.name not in HELPERS:
        raise WorldError(
            "webarena", f"unknown helper {call.name!r}", f"known: {', '.join(HELPERS)}"
        )
    arguments = [str(argument) for argument in call.arguments if argument != PAGE]
    return HELPERS[call.name](
        ending, *(argument.replace(LAST_URL, ending.url) for argument in arguments)
    )


def post_url(ending: Ending, url: str) -> str:
    """The address of the forum post to which a comment's address belongs."""
    parsed = urlparse(url)
    parts = parsed.path.split("/")
    if len(parts) < 4 or parts[1] != "f":
        return url
    return f"{parsed.scheme}://{parsed.netloc}/f/{parts[2]}/{parts[3]}/"


def member_role(ending: Ending, account: str) -> str:
    """The role of a project member on the members page."""
    selector = "td[data-label='Account'] span.gl-avatar-labeled-sublabel"
    accounts = f'[...document.querySelectorAll("{selector}")]'
    index = f"{accounts}.findIndex(one => one.outerText === '@' + {json.dumps(account)})"
    return ending.page.read(f"document.querySelectorAll('td.col-max-role span')[{index}].outerText")


def _fetch(ending: Ending, path: str) -> Any:
    if ending.fetch is None:
        raise WorldError("webarena", "a check needs the shop's REST API", "pass `fetch` to Ending")
    return ending.fetch(path)


def latest_order_url(ending: Ending) -> str:
    """The address of the newest order."""
    path = (
        "/rest/V1/orders?searchCriteria[sortOrders][0][field]=created_at&"
        "searchCriteria[sortOrders][0][direction]=DESC&searchCriteria[pageSize]=1"
    )
    order = int(_fetch(ending, path)["items"][0]["increment_id"])
    return ending.resolve(f"__SHOPPING__/sales/order/view/order_id/{order}/")


def _latest_review(ending: Ending, sku: str) -> Mapping[str, Any]:
    reviews = _fetch(ending, f"/rest/V1/products/{sku}/reviews")
    return dict(reviews[-1]) if reviews else {}


def review_author(ending: Ending, sku: str) -> str:
    """The author of the newest review of a product."""
    return str(_latest_review(ending, sku).get("nickname", ""))


def review_rating(ending: Ending, sku: str) -> str:
    """The rating of the newest review of a product, in percent."""
    ratings = _latest_review(ending, sku).get("ratings") or [{}]
    return str(ratings[0].get("percent", ""))


HELPERS: dict[str, Callable[..., str]] = {
    "reddit_get_post_url": post_url,
    "gitlab_get_project_memeber_role": member_role,
    "shopping_get_latest_order_url": latest_order_url,
    "shopping_get_sku_latest_review_author": review_author,
    "shopping_get_sku_latest_review_rating": review_rating,
}
