"""How much the tests notice: one small fault at a time, and the unit tests that should fail.

Every mutant changes one place of one module (a comparison, an operator, a number, a sign, min for
max, a lost `.detach()`), in a copy of the tree. It is killed when a matching test fails or hangs.
Messages of errors, annotations, decorators and `strict=` are left alone. What survives is printed;
what nobody could notice is excused in `EQUIVALENT`, with the reason, and printed too.
    python benchmarks/mutation.py        # everything: ten minutes on a quiet core
    python benchmarks/mutation.py algos trust/risk.py --sample 20 --seed 1 --json score.json
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, UNIT, GOAL = "terrella", "tests/unit", 0.9
WARM = "numpy torch pyarrow.parquet gymnasium hypothesis.strategies pytest rich.table tyro"
"""Imported once, before the first fork: they cost more than the tests."""

# Group, module, its tests, quickest first. The score is said of groups.
TARGETS = """
algos   algos/advantages.py      algos/test_advantages.py
algos   algos/auxiliary.py       algos/test_filters_and_diagnostics.py
algos   algos/credit.py          algos/test_credit_and_losses.py
algos   algos/diagnostics.py     algos/test_filters_and_diagnostics.py
algos   algos/estimators.py      algos/test_advantages.py
algos   algos/filters.py         algos/test_filters_and_diagnostics.py
algos   algos/losses.py          algos/test_credit_and_losses.py
algos   algos/webrl.py           algos/test_webrl.py
algos   algos/webrl_config.py    algos/test_webrl.py
trust   trust/certificate.py     trust/test_gate_and_certificate.py
trust   trust/coverage.py        trust/test_gate_and_certificate.py
trust   trust/gate.py            trust/test_gate_and_certificate.py
trust   trust/horizon.py         trust/test_horizon.py
trust   trust/nearness.py        trust/test_predictive.py
trust   core/predictive.py       trust/test_predictive.py
trust   trust/predictive.py      trust/test_predictive.py
trust   trust/ranking.py         trust/test_ranking.py
trust   trust/risk.py            trust/test_risk.py
trust   trust/truth.py           trust/test_predictive.py
stats   core/claims.py           core/test_claims.py
stats   core/stats.py            core/test_stats.py core/test_claims.py
pass@k  evals/pass_at_k.py       evals/test_pass_at_k.py
verify  verify/text.py           verify/test_text_verifiers.py
verify  verify/state.py          verify/test_state_verifier.py
verify  verify/tree.py           verify/test_tree_changes.py verify/test_tree.py
verify  verify/tree_diff.py      verify/test_tree_changes.py verify/test_tree.py
verify  verify/frames.py         verify/test_frames_verifier.py
verify  verify/frame_metrics.py  verify/test_frames_verifier.py
store   data/store.py            data/test_store.py
store   data/parts.py            data/test_store.py
store   core/files.py            data/test_store.py
"""

# Why nobody could tell, then the mutants (how their line in the report begins). They are run all
# the same: one that a test kills counts as killed.
EQUIVALENT = """
Of one verdict or none: whatever comes of it is set to 0 in the last line.
    algos/advantages.py group_advantages: count.clamp(min=1) -> count
    algos/advantages.py group_advantages: (count - 1).clamp(min=1) -> count - 1
    algos/advantages.py group_advantages: (min=1) 1 -> 2
    algos/filters.py group_spread: count.clamp(min=1) -> count
    algos/filters.py group_spread: (count - 1).clamp(min=1) -> count - 1
    algos/filters.py group_spread: (min=1) 1 -> 2
    algos/filters.py group_spread: count > 1 -> count >= 1
A guard against rounding or dividing by zero: its size, and what lies exactly on it, is no promise.
    algos/advantages.py module: (EPSILON = 1e-06)
    algos/advantages.py zero_variance: high - low <= EPSILON
    algos/filters.py most_uncertain: spread > EPSILON
    algos/filters.py top_p_spread: spread > EPSILON
    trust/predictive.py matches: abs(predicted.reward - true.reward) > SAME_REWARD
    trust/risk.py inside: score(risk, prob) <= self.quantile + 1e-12
    trust/risk.py inside: (self.quantile + 1e-12)
    trust/ranking.py _inversions: low > 0
    trust/horizon.py _accuracy: (min(1.0, sum(
    trust/ranking.py _inversions: high < 0 -> high <= 0
Only the sign is kept: where it is cut off does not matter.
    algos/webrl.py released_advantages: raw.clamp(-1, 1) -> raw
    algos/webrl.py released_advantages: (-1) 1 -> 2
    algos/webrl.py released_advantages: (raw.clamp(-1, 1)) 1 -> 2
Signs are 1 or -0.6, never 0, and the loss of a negative step is masked, whatever its strength.
    algos/webrl.py webrl_released: signs > 0
    algos/webrl.py webrl_released: signs < 0
    algos/webrl.py webrl_released: (signs < 0)
    algos/webrl.py webrl_released: confidence < 0.9
    algos/webrl.py webrl_released: (confidence < 0.9)
    algos/webrl.py webrl_released: confidence >= 0.8 -> confidence > 0.8
The same axis of the same array, or a number that numpy takes for -1.
    algos/webrl.py critic_loss: -1 -> 1
    trust/nearness.py _numbers: (-1) 1 -> 2
    trust/nearness.py _search: -1 -> 1
    trust/risk.py signals: (-1) 1 -> 2
Below every risk is below every risk; a file's layout is not its content.
    trust/certificate.py threshold: (-1.0)
    trust/certificate.py save: (indent=1)
    trust/gate.py __init__: (-1.0)
    trust/gate.py _recertify: (-1.0)
Overwritten, or the same on both sides, or a weight that is cut off at 1 afterwards.
    trust/horizon.py ImaginedBranch: (success: bool = False)
    trust/horizon.py _as_distribution: (certain(
    trust/horizon.py _as_distribution: (min(1.0, b.weight))
    trust/horizon.py _seen: (ImaginedBranch(1.0
How much work is done, not what comes of it.
    data/parts.py module: ((16384, 64000000))
    data/parts.py encode_part: table.nbytes + 1
    data/parts.py encode_part: (table.nbytes + 1)
    data/parts.py encode_part: (sort_keys=True)
    trust/nearness.py module: (MOST = 20000)
    trust/nearness.py module: (AT_ONCE = 64)
    trust/nearness.py __init__: (default=0)
    trust/ranking.py module: (RESAMPLES = 1000)
    trust/risk.py _fit_logistic: (range(50))
    trust/risk.py _fit_logistic: np.abs(change).max() < 1e-09
    trust/risk.py _fit_logistic: (np.abs(change).max() < 1e-09)
    trust/risk.py _fit_logistic: break
    trust/risk.py trusted_below: (len(order) // 50)
    evals/pass_at_k.py module: (RESAMPLES = 2000)
Moves a quantile of Student's t in the sixth digit or behind; four are promised.
    core/stats.py student_t95: degrees <= len(_T95)
    core/stats.py student_t95: (79 * z ** 9)
    core/stats.py student_t95: (776 * z ** 7)
    core/stats.py student_t95: (1482 * z ** 5)
    core/stats.py student_t95: (1920 * z ** 3)
    core/stats.py student_t95: 945 * z -> 945 / z
    core/stats.py student_t95: (945 * z)
    core/stats.py student_t95: (92160 * degrees ** 4)
A place that is none is none, whichever number below 0 says so; a key that `get` makes up for.
    verify/tree_diff.py _children: -1 -> 1
    verify/tree_diff.py _children: (-1) 1 -> 2
    verify/tree_diff.py _longest_in_order: (-1) 1 -> 2
    verify/tree_diff.py _node_index: (-1) 1 -> 2
The sort is stable: new lines of a place stand behind the others already.
    verify/tree_diff.py write_changes: ((index, 0
    verify/tree_diff.py write_changes: ((anchor, 1
Nothing is left to choose from, and nothing is chosen; or a float exactly on the edge.
    verify/tree_diff.py credit_new: ((0.0, 0)) 0 -> 1
    verify/tree_diff.py credit_new: best > 0.5
The same axis, and keys of one JSON container, which are all places or all names.
    verify/frame_metrics.py _blur: -2 -> 2
    verify/state.py _build: all(
Cannot be zero there: the product of the two was negative.
    trust/ranking.py _inversions: true.mean() > 0
"""

SWAPPED = """
Lt LtE, LtE Lt, Gt GtE, GtE Gt, Eq NotEq, NotEq Eq, Is IsNot, IsNot Is, In NotIn, NotIn In, And Or,
Or And, Add Sub, Sub Add, Mult Div, Div Mult, FloorDiv Mult, Mod Mult, Pow Mult, BitAnd BitOr,
BitOr BitAnd, LShift RShift
"""
RENAMED = "min max, minimum maximum, amin amax, argmin argmax, any all, floor ceil"
DROPPED = {"detach", "clamp", "abs", "clip"}


def _pairs(table: str) -> dict[str, str]:
    words = table.replace(",", " ").split()
    return dict(zip(words[::2], words[1::2], strict=True))


OPERATORS = {getattr(ast, old): getattr(ast, new) for old, new in _pairs(SWAPPED).items()}
NAMES = _pairs(RENAMED) | {new: old for old, new in _pairs(RENAMED).items()}


def excuse(mutant: str) -> str | None:
    """Why this mutant changes nothing that matters, if somebody has said so."""
    reason = ""
    for line in EQUIVALENT.strip().splitlines():
        if not line.startswith(" "):
            reason = line
        elif mutant.startswith(line.strip()):
            return reason
    return None


@dataclass(frozen=True)
class Mutant:
    """One fault, and what the module reads like with it."""

    line: int
    name: str
    source: str


@dataclass
class Result:
    """What became of a module's mutants."""

    killed: int = 0
    survivors: list[str] = field(default_factory=list)
    equivalent: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def score(self) -> float:
        """Killed, of those that could be."""
        count = self.killed + len(self.survivors)
        return self.killed / count if count else 1.0


# --- making mutants -------------------------------------------------------------------------------


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of this node."""
    other = copy.deepcopy(node)
    if isinstance(other, ast.Compare):
        for place, operator in enumerate(other.ops):
            other.ops[place] = OPERATORS[type(operator)]()
            yield other
            other.ops[place] = operator
    elif isinstance(other, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(other.op) in OPERATORS:
        other.op = OPERATORS[type(other.op)]()
        yield other
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        flipped, value = isinstance(node.value, bool), node.value
        more = value * 2 or 1.0 if isinstance(value, float) else value + 1
        yield ast.Constant(not value if flipped else more)
    elif isinstance(node, ast.Break | ast.Continue):
        yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()
    elif isinstance(other, ast.Call):
        yield from _calls(other)
    elif isinstance(other, ast.If | ast.IfExp) and isinstance(other.test, ast.Name | ast.Attribute):
        other.test = ast.UnaryOp(ast.Not(), other.test)
        yield other


def _calls(call: ast.Call) -> Iterator[ast.AST]:
    if isinstance(call.func, ast.Name) and call.func.id in NAMES:
        call.func.id = NAMES[call.func.id]
        yield call
    elif isinstance(call.func, ast.Attribute) and call.func.attr in NAMES:
        call.func.attr = NAMES[call.func.attr]
        yield call
    elif isinstance(call.func, ast.Attribute) and call.func.attr in DROPPED:
        owner = call.func.value
        yield call.args[0] if isinstance(owner, ast.Name) and owner.id in ("np", "torch") else owner


def places(node: ast.AST, where: str) -> Iterator[tuple[str, ast.AST, str, int | None]]:
    """(function, parent, field, index) of each node that may change, in the order of the file."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        where = node.name
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            strict = isinstance(child, ast.keyword) and child.arg == "strict"
            if isinstance(child, ast.AST) and not isinstance(child, ast.Raise) and not strict:
                yield where, node, name, index
                yield from places(child, where)


def mutants(source: str) -> list[Mutant]:
    """All single faults of a module."""
    tree, found = ast.parse(source), []
    for where, parent, name, index in list(places(tree, "module")):
        node = getattr(parent, name) if index is None else getattr(parent, name)[index]
        context = f"({ast.unparse(parent)[:60]}) " if isinstance(node, ast.Constant) else ""
        for other in changes(node):
            _put(parent, name, index, other)
            old, new = (ast.unparse(one).split("\n")[0][:90] for one in (node, other))
            text = ast.unparse(ast.fix_missing_locations(tree))
            said = " ".join(f"{where}: {context}{old} -> {new}".split())
            found.append(Mutant(getattr(node, "lineno", 0), said, text))
        _put(parent, name, index, node)
    return found


def _put(parent: ast.AST, name: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


# --- running tests --------------------------------------------------------------------------------


def tests_pass(base: Path, module: str, tests: str, timeout: float, keep: bool = False) -> bool:
    """Run tests in a fork of this process, against the copy; a hang is a failure."""
    child = os.fork()
    if not child:
        os.setsid()
        os._exit(_run_tests(base, module, tests, keep))
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code == 99:
                raise SystemExit(f"{module}: the tests did not import the copy in {base}")
            return code == 0
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _run_tests(base: Path, module: str, tests: str, keep_bytecode: bool) -> int:
    sys.dont_write_bytecode = not keep_bytecode
    os.chdir(base)
    sys.path[:0] = [str(base / "src"), str(base)]
    with Path("output.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    try:
        import hypothesis
        import pytest

        settings = hypothesis.settings  # the same examples for every mutant
        settings.register_profile("mutation", database=None, derandomize=True, deadline=None)
        settings.load_profile("mutation")
        plugins = ["-p", "no:cacheprovider", "-p", "pytest_timeout"]
        files = [f"{UNIT}/{name}" for name in tests.split()]
        code = int(pytest.main(["-x", "-q", *plugins, *files]))
        loaded = sys.modules.get(f"{PACKAGE}.{module.removesuffix('.py').replace('/', '.')}")
        copied = str(getattr(loaded, "__file__", "")).startswith(str(base))
    except BaseException:  # noqa: BLE001  a mutant may break anything, the runner of the tests too
        return 98
    return code if code or copied else 99


def try_module(base: Path, module: str, tests: str, sample: int | None, seed: int) -> Result:
    """All mutants of one module, or a sample."""
    path, began = base / "src" / PACKAGE / module, time.monotonic()
    source, result = path.read_text("utf-8"), Result()
    found = mutants(source)
    if not found:
        return result
    tests_pass(base, module, tests, timeout=600, keep=True)  # compiles what is imported
    warm = time.monotonic()
    if not tests_pass(base, module, tests, timeout=600):
        output = (base / "output.txt").read_text()[-3000:]
        raise SystemExit(f"{module}: its tests fail without a mutant:\n{output}")
    timeout = 10 + 5 * (time.monotonic() - warm)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()
    if sample is not None and sample < len(found):
        chosen = random.Random(f"{seed} {module}").sample(range(len(found)), sample)
        found = [found[place] for place in sorted(chosen)]
    for mutant in found:
        path.write_text(mutant.source, "utf-8")
        reason, said = excuse(f"{module} {mutant.name}"), f"{module}:{mutant.line} {mutant.name}"
        if not tests_pass(base, module, tests, timeout):
            result.killed += 1
        elif reason is not None:
            result.equivalent.append(f"{said}  [{reason}]")
        else:
            result.survivors.append(said)
    path.write_text(source, "utf-8")
    result.seconds = round(time.monotonic() - began, 1)
    return result


def main() -> None:
    """Run, print, and fail below the goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("only", nargs="*", help="groups or modules; all without")
    parser.add_argument("--sample", type=int, help="mutants per module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the result is written")
    asked = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in WARM.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    results: dict[str, dict[str, Result]] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve()
        for name in ("src", "tests"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, base / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", base)
        for group, module, tests in (line.split(None, 2) for line in TARGETS.strip().splitlines()):
            if asked.only and group not in asked.only and module not in asked.only:
                continue
            one = try_module(base, module, tests, asked.sample, asked.seed)
            results.setdefault(group, {})[module] = one
            count = one.killed + len(one.survivors)
            print(f"{module}: {one.killed} of {count} killed, {one.score:.1%}, {one.seconds} s")
            for line in one.survivors:
                print(f"    survived: {line}")
            for line in one.equivalent:
                print(f"    equivalent: {line}")
            sys.stdout.flush()
    report(results, asked.json)


def report(results: dict[str, dict[str, Result]], path: Path | None) -> None:
    """The score of each group, and of all."""
    modules = {name: one for table in results.values() for name, one in table.items()}
    scores: dict[str, dict[str, float]] = {}
    for group, table in {**results, "all": modules}.items():
        killed = sum(one.killed for one in table.values())
        count = killed + sum(len(one.survivors) for one in table.values())
        excused = sum(len(one.equivalent) for one in table.values())
        score, strict = killed / max(1, count), killed / max(1, count + excused)
        scores[group] = {"killed": killed, "mutants": count, "score": score}
        scores[group] |= {"equivalent": excused, "score_without_excuses": strict}
        said = f"{score:.1%}, {strict:.1%} if the {excused} equivalent count as survivors"
        print(f"{group:8} {killed:5} of {count:5}  {said}")
    if path is not None:
        rows = {name: {**asdict(one), "score": one.score} for name, one in modules.items()}
        written = json.dumps({"groups": scores, "modules": rows}, indent=1)
        path.write_text(written + "\n", "utf-8")
    if any(score["score"] < GOAL for score in scores.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
