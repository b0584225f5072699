"""Promises of the package as a whole.

Fast to import, no heavy import, layers enforced, a frozen command line.
"""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import terrella

ROOT = Path(__file__).parents[2]
LONGEST_FUNCTION = 60
"""Lines; recipes, which are data, are the longest."""
LONGEST_BODY = 53
"""Lines without signature and docstring."""


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light():
    # CPU seconds, so that a busy machine does not decide.
    heavy = "{'torch', 'ray', 'transformers', 'pyarrow'}"
    out = run_python(
        f"import sys, time; t = time.process_time(); import terrella; import terrella.core.world;"
        f"print(time.process_time() - t, sorted({heavy} & set(sys.modules)))"
    )
    seconds, found = out.split(maxsplit=1)
    assert float(seconds) < 0.5 and found.strip() == "[]"


def test_python_m_terrella_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "terrella", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "usage: terrella" in done.stdout


def test_nothing_is_drawn_from_hash():
    # It differs between Python versions, and for strings between processes; `__hash__` itself may
    # call it.
    for path in sorted((ROOT / "src/terrella").rglob("*.py")):
        tree = ast.parse(path.read_text())
        hashes = [node for node in ast.walk(tree) if getattr(node, "name", "") == "__hash__"]
        own = {id(part) for node in hashes for part in ast.walk(node)}
        called = [
            n
            for n in ast.walk(tree)
            if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "hash"
        ]
        assert [f"{path}:{call.lineno}" for call in called if id(call) not in own] == []


def test_every_public_name_is_there():
    for name in terrella.__all__:
        assert getattr(terrella, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        terrella.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/types.py", "import terrella.worlds"),  # climbs
        ("verify/text.py", "import terrella.data"),  # crosses a |
        (
            "worlds/counter/__init__.py",
            "import terrella.worlds.bandit",
        ),  # a world that knows another
        ("data/__init__.py", "import ray"),  # an engine library outside engines/
        ("pipelines/rlvr.py", "import terrella.engines.trl.learner"),  # a pipeline with a trainer
        ("evals/cost.py", "from accelerate import Accelerator"),
    ],
)
def test_an_import_that_climbs_or_crosses_fails_the_gate(tmp_path, file, line):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert lint_imports(tmp_path).returncode == 0
    target = tmp_path / "src/terrella" / file
    target.write_text(f"{target.read_text()}\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1 and "BROKEN" in done.stdout


def lint_imports(folder):
    code = (
        "import sys; sys.path.insert(0, 'src'); "
        "from importlinter.cli import lint_imports_command as lint; lint()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], capture_output=True, text=True, cwd=folder
    )


SAMPLERS = {"LocalSampler", "local_sampler", "VllmSampler", "VllmServer"}


def made_samplers(folder):
    """Calls that make a sampler or its server outside engines/, as `file:line`."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        if path.relative_to(folder).parts[0] == "engines":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            if getattr(called, "id", getattr(called, "attr", "")) in SAMPLERS:
                found.append(f"{path.relative_to(folder)}:{node.lineno}")
    return found


def test_samplers_are_made_in_engines_only(tmp_path):
    assert made_samplers(ROOT / "src/terrella") == []
    for part in ("engines", "evals"):
        (tmp_path / part).mkdir()
        source = "import x\nplayed = run(x.LocalSampler(model), VllmServer(config).sampler())\n"
        (tmp_path / part / "made.py").write_text(source)
    assert made_samplers(tmp_path) == ["evals/made.py:2"] * 2


def test_no_forbidden_call_in_the_source():
    forbidden = re.compile(
        r"(?<![.\w])(eval|exec)\(|\bimport pickle\b|weights_only=False|trust_remote_code=True"
    )
    found = [path for path in (ROOT / "src").rglob("*.py") if forbidden.search(path.read_text())]
    assert found == []


def test_the_command_line_has_not_grown():
    groups = (
        "worlds",
        "importing",
        "training",
        "sft",
        "evaluate",
        "plan",
        "showing",
        "exporting",
        "machine",
    )
    text = "".join((ROOT / f"src/terrella/cli/{group}.py").read_text() for group in groups)
    assert re.findall(r'@app\.command\(name="([\w-]+)"', text) == [
        "worlds",
        "check",
        "play",
        "new-world",
        "wrap",
        "collect",
        "import",
        "recipes",
        "rlvr",
        "train-world-model",
        "certify",
        "reproduce",
        "sft",
        "evaluate",
        "plan",
        "view",
        "report",
        "serve",
        "push",
        "pull",
        "export",
        "sites",
        "doctor",
    ]


def test_files_and_functions_stay_readable():
    """A ratchet: these bounds may only go down."""
    long_files = [p for p in (ROOT / "src").rglob("*.py") if len(p.read_text().splitlines()) > 400]
    assert long_files == []
    assert [
        found
        for path in sorted((ROOT / "src").rglob("*.py"))
        for found in long_functions(path, ast.parse(path.read_text()))
    ] == []


def long_functions(path, tree):
    """Functions above a bound, as `file:line name`.

    The options of a command are its parameters, so that of a command only the body counts.
    """
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        statements = node.body[1:] if ast.get_docstring(node) and node.body[1:] else node.body
        body = node.end_lineno - statements[0].lineno + 1
        is_command = any("app.command(" in ast.unparse(each) for each in node.decorator_list)
        whole = 0 if is_command else node.end_lineno - node.lineno + 1
        if body > LONGEST_BODY or whole > LONGEST_FUNCTION:
            found.append(f"{path}:{node.lineno} {node.name}")
    return found


@pytest.mark.parametrize(
    ("head", "doc", "body", "found"),
    [
        ("", 0, 53, 0),
        ("", 0, 54, 1),
        ("", 6, 53, 0),
        ("", 7, 53, 1),
        ("@app.command(name='x')\n", 99, 53, 0),
        ("@app.command(name='x')\n", 99, 54, 1),
    ],
)
def test_a_long_function_is_found(head, doc, body, found):
    described = '    """a' + "\n" * (doc - 1) + '"""\n' if doc else ""
    source = f"{head}def f():\n{described}" + "    x = 1\n" * body
    assert len(long_functions("file.py", ast.parse(source))) == found


def test_no_modules_import_each_other_in_a_circle():
    grimp = pytest.importorskip("grimp")
    networkx = pytest.importorskip("networkx")
    graph = grimp.build_graph("terrella", cache_dir=None)
    imports = networkx.DiGraph()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            imports.add_edge(module, imported)
    components = networkx.strongly_connected_components(imports)
    assert [sorted(modules) for modules in components if len(modules) > 1] == []
