"""Verifiers by name. A verifier is registered only if it passes the exploit battery.

This includes the built-in ones. Their battery runs when they are first looked up, so that importing
this module costs nothing.
    register("my_diff", MyDiff.Config(), [Example(before=..., truth=..., others=...)])
    verifier = find("my_diff").build()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

from terrella.core.config import Configurable
from terrella.core.errors import VerifierError
from terrella.core.protocols import Verifier
from terrella.core.types import State, Text, Tree
from terrella.verify.battery import Example, run_battery
from terrella.verify.page_sections import PageSections
from terrella.verify.state import StateDiff
from terrella.verify.text import Exact, LineGain
from terrella.verify.tree_diff import TreeDiff

_registered: dict[str, Configurable.Config] = {}


def register(name: str, config: Configurable.Config, examples: Sequence[Example]) -> None:
    """Run the battery and register the config under this name.

    Raises VerifierError with a list of the attacks that won.
    """
    if name in _registered and _registered[name] != config:
        raise VerifierError(name, "the name is taken by another verifier", "choose another name")
    with ExitStack() as stack:
        verifier = config.build()
        if isinstance(verifier, AbstractContextManager):  # it may hold a process
            stack.enter_context(verifier)
        if not isinstance(verifier, Verifier):
            raise VerifierError(
                name, f"{type(verifier).__name__} has no `verify(reply, truth, before)`"
            )
        report = run_battery(verifier, examples)
    if not report.passed:
        raise VerifierError(
            name,
            f"failed the exploit battery: {report.summary()}",
            "fix the verifier, then register it",
        )
    _registered[name] = config


def find(name: str) -> Configurable.Config:
    """The config registered under this name."""
    if name not in _registered and name in _BUILT_IN:
        config, examples = _BUILT_IN[name]
        register(name, config(), examples)
    if name not in _registered:
        raise VerifierError(name, "no such verifier", f"known: {', '.join(names())}")
    return _registered[name]


def names() -> list[str]:
    """Names of all registered and built-in verifiers."""
    return sorted({*_BUILT_IN, *_registered})


def _texts(*texts: str) -> Example:
    before, truth, *others = map(Text, texts)
    return Example(before=before, truth=truth, others=tuple(others))


_TEXT_EXAMPLES = (
    _texts(
        "#####\n#@  #\n# $ #\n#####", "#####\n# @ #\n# $ #\n#####", "#####\n#   #\n#@$ #\n#####"
    ),
    _texts(
        "You are in the hall.",
        "You are in the kitchen.\nA pan is here.",
        "You are in the hall.\nIt is dark.",
    ),
    _texts("a key\na lamp\na rope", "a key\na rope", "a lamp\na rope"),
    _texts("   @", "@   ", " @  "),
    _texts("The door is open.", "The door is open.", "The door is closed."),
)


def _states(before: object, truth: object, *others: object) -> Example:
    return Example(
        before=State.of(before), truth=State.of(truth), others=tuple(map(State.of, others))
    )


_STATE_EXAMPLES = (
    _states({"n": 1, "goal": 3}, {"n": 2, "goal": 3}, {"n": 0, "goal": 3}),
    _states(
        {"hall": ["key", "lamp"], "bag": []},
        {"hall": ["lamp"], "bag": ["key"]},
        {"hall": ["key"], "bag": []},
    ),
    _states({"a": 1, "b": [1, 2], "c": 3}, {"c": 3}, {"b": [], "c": 3}),
    _states({"a": 1, "b": 2}, {"d": "x"}, {}),
    _states({"open": True}, {"open": True}, {"open": False}),
)


def _pages(before: str, truth: str, *others: str) -> Example:
    return Example(before=Tree(before), truth=Tree(truth), others=tuple(map(Tree, others)))


_FORM = '[1] textbox "Name"\n[2] checkbox "New"\n[3] button "Ok"'
_TREE_EXAMPLES = (
    _pages(
        _FORM,
        _FORM.replace('"Name"', '"Name" value="kai"'),
        _FORM.replace('"New"', '"New" checked'),
    ),
    _pages(_FORM, f'{_FORM}\n[4] alert "A name is needed"', f'{_FORM}\n[4] text "Thank you"'),
    _pages(f'{_FORM}\n[4] dialog ""\n  [5] button "Close"', _FORM, f'{_FORM}\n[4] dialog ""'),
    _pages(_FORM, '[1] heading "Done"\n[2] link "Back"', '[1] heading "Sorry"\n[2] link "Back"'),
    _pages(_FORM, _FORM, _FORM.replace('"New"', '"New" checked')),
    _pages(
        '[1] button "Add"\ntext "0"\ntext "0"',
        '[1] button "Add"\ntext "0"\ntext "1"',
        '[1] button "Add"\ntext "2"\ntext "0"',
    ),
)

_BUILT_IN: dict[str, tuple[Callable[[], Configurable.Config], Sequence[Example]]] = {
    "exact": (Exact.Config, _TEXT_EXAMPLES),
    "line_gain": (LineGain.Config, _TEXT_EXAMPLES),
    "state_diff": (StateDiff.Config, _STATE_EXAMPLES),
    "tree_diff": (TreeDiff.Config, _TREE_EXAMPLES),
    "page_sections": (PageSections.Config, _TREE_EXAMPLES),
}
