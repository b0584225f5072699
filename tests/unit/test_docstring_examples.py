"""The examples in docstrings of modules call what is there, with arguments that it takes."""

import ast
import inspect
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src/terrella"
TREES = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def signature(function, *, method=False):
    """The parameters of a function in the source, which is not imported."""
    given = function.args
    defaults = [None] * (len(given.posonlyargs + given.args) - len(given.defaults))
    positional = zip(given.posonlyargs + given.args, [*defaults, *given.defaults], strict=True)
    parameters = [_parameter(arg, default, "POSITIONAL_OR_KEYWORD") for arg, default in positional]
    decorators = [ast.unparse(each) for each in function.decorator_list]
    if method and "staticmethod" not in decorators:
        parameters = parameters[1:]
    if given.vararg:
        parameters.append(_parameter(given.vararg, None, "VAR_POSITIONAL"))
    keywords = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    parameters += [_parameter(arg, default, "KEYWORD_ONLY") for arg, default in keywords]
    if given.kwarg:
        parameters.append(_parameter(given.kwarg, None, "VAR_KEYWORD"))
    return inspect.Signature(parameters)


def _parameter(arg, default, kind):
    value = inspect.Parameter.empty if default is None else default
    return inspect.Parameter(arg.arg, getattr(inspect.Parameter, kind), default=value)


def definitions(tree):
    """Signatures of a module's functions and classes by name, and of its methods."""
    called, methods = defaultdict(list), defaultdict(list)
    for node in tree.body:
        if isinstance(node, FUNCTION):
            called[node.name].append(signature(node))
    for node in ast.walk(tree):
        members = node.body if isinstance(node, ast.ClassDef) else []
        for each in members:
            if isinstance(each, FUNCTION):
                methods[each.name].append(signature(each, method=True))
                if each.name == "__init__":
                    called[node.name].append(signature(each, method=True))
    return called, methods


DEFINITIONS = {path: definitions(tree) for path, tree in TREES.items()}
ANYWHERE = defaultdict(list)
for _called, _ in DEFINITIONS.values():
    for _name, _signatures in _called.items():
        ANYWHERE[_name] += _signatures


def example(docstring):
    """The lines at the end of a docstring that are code; prose does not parse."""
    lines = docstring.rstrip().splitlines()
    for first in range(1, len(lines)):
        code = textwrap.dedent("\n".join(lines[first:]))
        for whole in (code, f"{code}\n    pass"):
            try:
                return ast.parse(whole)
            except SyntaxError:
                continue
    return ast.parse("")


def calls(tree):
    """The calls whose arguments are all written out."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        unknown = [arg for arg in call.args if ast.unparse(arg).startswith(("*", "..."))]
        if not unknown and all(keyword.arg for keyword in call.keywords):
            yield call


def takes(parameters, call):
    try:
        parameters.bind(*call.args, **{each.arg: each.value for each in call.keywords})
    except TypeError:
        return False
    return True


def wrong_calls(path, docstring):
    """Calls that no function of this name takes, and how many calls were compared."""
    called, methods = DEFINITIONS[path]
    wrong, compared = [], 0
    tree = example(docstring)
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    own = {name.id for name in named if isinstance(name.ctx, ast.Store)}
    for call in calls(tree):
        known = []
        if isinstance(call.func, ast.Name) and call.func.id not in own:
            known = called[call.func.id] or ANYWHERE[call.func.id]
        elif isinstance(call.func, ast.Attribute):
            known = methods[call.func.attr]
        compared += bool(known)
        if known and not any(takes(parameters, call) for parameters in known):
            wrong.append(ast.unparse(call))
    return wrong, compared


def test_examples_in_docstrings_bind_to_the_signatures():
    compared, wrong = 0, {}
    for path, tree in TREES.items():
        found, count = wrong_calls(path, ast.get_docstring(tree) or "")
        compared += count
        if found:
            wrong[str(path.relative_to(SOURCE))] = found
    assert wrong == {}
    assert compared > 600


@pytest.mark.parametrize(
    ("line", "fits"),
    [
        ("loop.run(show)", True),
        ("loop.run()", False),
        ("loop = RlvrLoop(trainer, rollout, tasks, config, saved, seed=0, budget=budget)", True),
        ("loop = RlvrLoop(trainer, rollout, tasks, config, saved, seed=0)", False),
        ("loop = RlvrLoop(trainer, rollout, tasks, config, saved, seeds=0, budget=b)", False),
        ("with RlvrLoop(trainer) as loop:", False),
    ],
)
def test_a_call_that_does_not_fit_is_found(line, fits):
    path = SOURCE / "engines/tinker/loop.py"
    wrong, compared = wrong_calls(path, f"A loop.\n\nWhat it does.\n    {line}")
    assert compared == 1 and (wrong == []) == fits
