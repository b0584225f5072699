"""Pointer policies: what is read, what is pointed at, and that padding changes nothing."""

import pytest

torch = pytest.importorskip("torch")
from terrella.models.pointer import PointerPolicy, PointerSizes, Reader, TwoHeads
from terrella.models.policy_input import PolicyInput

PAGE = '[1] task "Enter kai into Username"\n[2] label "Username"\n[3] textbox ""\n[4] button "Ok"'
WEB = PolicyInput(PAGE, ("type 3 kai", "click 4", "stop"), ("click 3",), 4)
ROOM = PolicyInput("Player: (1,2)\nBoxes: (2,2)", ("Up", "Down", "Left", "Right"), (), 9)


def test_an_action_points_at_its_line_and_at_its_words():
    reading = Reader().read([WEB])
    line, task, elsewhere = reading.pools_BK3T[0, 0]
    lines = reading.lines_BT[0]
    assert set(lines[line > 0].tolist()) == {2}  # the third line
    assert (
        task.sum() == pytest.approx(1) and lines[task > 0].tolist() == [0] and elsewhere.sum() == 0
    )
    assert reading.pools_BK3T[0, 2].sum() == 0  # `stop` points at nothing
    shared = reading.shared_BT[0][lines == 1]
    assert shared.tolist() == [0, 1]  # "label" is new, "Username" stands in the task


def test_a_cell_is_read_as_row_and_column():
    reading = Reader().read([ROOM])
    columns = reading.columns_BT[0]
    cells = columns.nonzero()[:, 0].tolist()
    assert len(cells) == 2 and columns[cells[0]] == columns[cells[1]]
    assert reading.words_BT[0, cells[0]] != reading.words_BT[0, cells[1]]


def test_padding_changes_nothing_and_only_offered_actions_have_a_chance():
    torch.manual_seed(0)
    sizes = PointerSizes(width=16, layers=1)
    policy = PointerPolicy(sizes)
    critic = TwoHeads(sizes)
    alone, together = Reader().read([ROOM]), Reader().read([WEB, ROOM])
    with torch.no_grad():
        torch.testing.assert_close(policy(together)[1, :4], policy(alone)[0])
        torch.testing.assert_close(critic(together)[0][1], critic(alone)[0][0])
        assert (
            policy(together)[0].exp().sum() == pytest.approx(1)
            and policy(together)[0, 3] == -torch.inf
        )


def test_a_page_that_is_too_long_loses_its_end_not_its_beginning():
    reading = Reader(max_words=20).read([PolicyInput("word " * 500, ("a",))])
    assert reading.words_BT.shape[1] == 21  # and how many steps are left
