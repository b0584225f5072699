"""Templates of the mini-arena: an instruction gets the check and the script of a task like it."""

import json

import numpy as np
import pytest

from terrella.core.types import Status
from terrella.core.written_tasks import shown_task
from terrella.worlds.webarena.evaluators import Ending, evaluate
from terrella.worlds.webarena.tasks import load_tasks, read_task
from terrella.worlds.webarena.templates import TemplateBook, unchecked_row

TABLES = {
    "FROM catalogue_product": [("Steel Whisk",), ("Night Ferry",), ("Bread 'n' Co",)],
    "printf": [("6.40",)],
    "num_in_stock -": [(12,)],
    "FROM spirit_topic_topic ORDER": [("Slugs again",)],
    "WHERE is_private": [("Cooking",), ("Travel",)],
    "ON t.category_id = c.id WHERE t.title = :topic": [("Travel",)],
    "COUNT(*)": [(4,)],
    "SELECT id FROM spirit_topic_topic WHERE title = :topic": [(2,)],
    "SELECT id FROM ticket ORDER": [(3,), (4,)],
    "SELECT owner": [("ida",)],
    "FROM component": [("ui",), ("search",)],
}
"""What the databases answer, by a piece of the query."""


def query(site, text, values):
    if "WHERE name = :page" in text:
        return [("x",)] if values["page"] == "InstallGuide" else []
    if text.startswith(
        ("SELECT id FROM ticket WHERE", "SELECT id FROM spirit_topic_topic WHERE t")
    ):
        return TABLES.get(text, [])
    return next(rows for piece, rows in TABLES.items() if piece in text)


BOOK = TemplateBook(query)


def task(instruction):
    draft = BOOK.fit(instruction)
    assert draft.checked, draft
    return read_task(json.loads(draft.task), "vab")


def test_a_fitting_instruction_becomes_the_task_that_was_written_by_hand():
    by_hand = {each.intent: each for each in load_tasks("mini")}
    for intent in (
        "What does the Steel Whisk cost?",
        "Who owns ticket 3?",
        'Give the Steel Whisk 4 stars in a review titled "Solid" that says "Does what it should.".',
        'Open a new ticket "Window forgets its size" of type defect with priority minor for the '
        "component ui.",
        'Create the wiki page MeetingNotes with the text "We meet on Mondays.".',
    ):
        made, known = task(intent), by_hand[intent]
        assert (made.oracle, made.answers, made.queries, made.start_urls, made.template) == (
            known.oracle,
            known.answers,
            known.queries,
            known.start_urls,
            known.template,
        )


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        ("Who owns ticket 99?", "there is no number '99'"),
        ("What does the Pony cost?", "there is no product 'Pony'"),
        ('Create the wiki page InstallGuide with the text "x"', "exists already"),
        ('Give the Night Ferry 9 stars in a review titled "a" that says "b"', "no score '9'"),
    ],
)
def test_what_does_not_exist_cannot_be_done(instruction, reason):
    draft = BOOK.fit(instruction)
    assert not draft.task and reason in draft.reason


def test_other_words_fit_no_template_and_marks_do_no_harm():
    assert BOOK.fit("Sing a song.") is None
    assert BOOK.fit('Add the comment "a" and "b" to ticket 3.') is None
    assert BOOK.fit("x" * 100_000) is None and BOOK.fit("Give the " + "a " * 5000) is None
    assert BOOK.fit('Add the comment "{number}" to ticket 3.').reason == (
        "there is no text '{number}'"
    )
    assert task("who  owns ticket 4").answers == {"exact_match": "ida"}


def test_quotes_in_a_value_stay_inside_the_query():
    made = task('Give the Bread \'n\' Co 4 stars in a review titled "It\'s" that says "ok".')
    assert "p.title = 'Bread ''n'' Co'" in made.queries[0].query
    assert made.queries[0].expected == ((4, "It's", "ok"),)


def test_what_templates_write_fits_them_and_can_be_done():
    written = BOOK.write(200, np.random.default_rng(0), {"shopping", "reddit", "gitlab"})
    tasks = [task(text) for text in written]
    assert [each.intent for each in tasks] == written
    assert len({each.template for each in tasks}) == len(BOOK.templates)
    alone = BOOK.write(20, np.random.default_rng(0), {"gitlab"})
    assert {task(text).sites for text in alone} == {("gitlab",)}
    assert BOOK.write(3, np.random.default_rng(0), {"map"}) == []
    assert all(each.oracle and each.eval_types and each.task_id >= 1_000_000 for each in tasks)


def test_a_task_without_a_check_is_nobodys_success():
    made = read_task(unchecked_row("Sing.", ("gitlab",), "__GITLAB__/wiki"), "vab")
    verdict = evaluate(made, Ending(answer="la", url="http://x.test", page=None))
    assert verdict.value is None and verdict.status is Status.NO_JUDGE


def test_the_task_of_a_page_is_read_as_it_was_meant():
    assert shown_task('task "Write \\"Hi\\" \\\\ x"\npage "u"') == 'Write "Hi" \\ x'
    assert shown_task('[1] task "Buy."\n') == "Buy." and shown_task('[2] button "task"') == ""
