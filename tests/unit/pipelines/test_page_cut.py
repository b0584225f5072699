"""Cut pages: a model is asked about a part, and the whole page is predicted."""

import pytest

from terrella.core.errors import PolicyError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.types import Prediction, Situation, Tree, show_text
from terrella.pipelines.web.page_cut import CutPages, most_that_fit

PAGE = '[1] task "Go."\n[2] list ""\n  [3] link "a"\n  [4] link "b"\n' + "\n".join(
    f'[{n}] link "x{n}"' for n in range(5, 30)
)


class Rewrites:
    """Replaces one text of the page that it is asked about."""

    def __init__(self, old, new):
        self.old, self.new, self.asked = old, new, []

    def predict(self, queries):
        self.asked += [show_text(query.situation.observation) for query in queries]
        return [self.one(show_text(query.situation.observation)) for query in queries]

    def one(self, page):
        assert self.old in page
        after = Tree(page.replace(self.old, self.new).strip("\n"))
        made = Prediction(observation=after, reward=0.5, terminated=False, logprob=-0.1, risk=0.1)
        return PredictiveDistribution((made,), (2,), 1)


def ask(model, action, lines=8):
    situation = Situation(
        instruction="", observation=Tree(PAGE), actions=(), history=(), steps_left=3
    )
    pages = CutPages(model, lambda asked, _: show_text(asked.observation).count("\n") + 1 <= lines)
    return pages, pages.predict([Query(situation, action)])[0]


@pytest.mark.parametrize(
    ("action", "old", "new"),
    [
        ("click 20", '[20] link "x20"', '[20] link "x20" focused'),
        ("click 20", '[20] link "x20"\n', ""),
        ("click 20", '[20] link "x20"', '[20] link "x20"\n[31] text "new"'),
        ("click 4", '  [4] link "b"', '  [4] link "c" focused'),
    ],
)
def test_changes_of_a_part_are_applied_to_the_whole_page(action, old, new):
    model = Rewrites(old, new)
    pages, answer = ask(model, action)
    (predicted,) = answer.predictions
    wanted = PAGE.replace(old, new).replace("[31]", "[30]")  # new elements get the next free id
    assert show_text(predicted.observation) == wanted
    assert len(model.asked[0].splitlines()) <= 8 and '"Go."' in model.asked[0]
    assert (predicted.reward, answer.counts, answer.unreadable, pages.cut.count) == (
        0.5,
        (2,),
        1,
        1,
    )


def test_what_is_hidden_goes_with_the_element_that_it_is_in():
    model = Rewrites('\n[2] list ""\n  [4] link "b"', "")
    pages, answer = ask(model, "click 4", lines=3)
    text = show_text(answer.predictions[0].observation)
    assert "[3]" not in text and "[4]" not in text and "[5]" in text and pages.cut.count == 1


def test_a_page_that_fits_is_asked_about_whole_and_one_that_cannot_is_refused_by_name():
    model = Rewrites("x20", "y")
    pages, _ = ask(model, "click 20", lines=100)
    assert model.asked == [PAGE] and not pages.cut.count
    with pytest.raises(PolicyError, match="not even one element of a page fits"):
        ask(model, "click 20", lines=0)


def test_the_most_that_fit():
    for most, found in ((0, 0), (1, 1), (5, 5), (9, 9), (20, 9)):
        assert most_that_fit(9, most.__ge__) == found
