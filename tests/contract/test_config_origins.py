"""Every config class declares which of its fields a file may give; only `load` reads files."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import terrella
from terrella.core.config import Configurable
from terrella.core.configurable import PACKAGES
from terrella.core.field_origin import may_come_from_file, undeclared

SOURCE = Path(terrella.__file__).parent
OPTIONAL = ("verl", "tensordict", "transfer_queue", "omegaconf", "vllm", "ray", "tinker", "trl")
"""Modules of engines import these; the configs of engines are elsewhere."""
HOW = re.compile(
    r"(^|_)(url|urls|host|port|address|addresses|endpoint_url|executable|command|arguments|argv|"
    r"program|binary|module|modules|imports|needs|options|kwargs|overrides|keys|extension|"
    r"variable|token|secret|cookies|path|folder|file|store|stores|out|cache|workers|worker)($|_)"
)
"""Names that say how, whatever their type."""
SIZES = ("held_out", "episode_workers")
"""Numbers whose names only look like that; `episode_workers` is inside a local config."""
SENT_BETWEEN_OUR_PROCESSES = {
    "commands/check/other_process.py",
    "commands/check/world_properties.py",
    "engines/verl/rollout_spec.py",
    "pipelines/collect/chunk.py",
    "rollout/ray_actors.py",
    "verify/isolated_child.py",
}


def _import_all():
    for module in pkgutil.walk_packages(terrella.__path__, "terrella."):
        if module.name.split(".")[1] not in PACKAGES or module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            assert (error.name or "").split(".")[0] in OPTIONAL, f"{module.name}: {error}"


def _subclasses(cls):
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def config_classes():
    _import_all()
    ours = {cls for cls in _subclasses(Configurable.Config) if cls.__module__[:9] == "terrella."}
    return sorted(ours, key=lambda cls: (cls.__module__, cls.__qualname__))


def test_every_field_that_could_name_a_program_or_an_address_is_declared():
    classes = config_classes()
    assert len(classes) > 70
    missing = {f"{cls.__module__}:{cls.__qualname__}": undeclared(cls) for cls in classes}
    found = {name: fields for name, fields in missing.items() if fields}
    assert not found, f"declare each as Local[...] or Recorded[...]: {found}"


def test_fields_with_names_that_say_how_are_local():
    wrong = [
        f"{cls.__module__}:{cls.__qualname__}.{name}"
        for cls in config_classes()
        for name in cls.__dataclass_fields__
        if HOW.search(name)
        and name not in SIZES
        and not _holds_configs(cls, name)
        and may_come_from_file(cls, name)
    ]
    assert not wrong, f"these say how, so they must be Local[...]: {wrong}"


def _holds_configs(cls, name):
    default = cls.__dataclass_fields__[name].default_factory
    return isinstance(default, type) and issubclass(default, Configurable.Config)


@pytest.mark.parametrize("name", ["world", "policy"])
def test_every_world_and_policy_of_ours_can_be_named_by_a_file_or_says_what_it_reaches(name):
    from terrella.policies.basic import require_policy
    from terrella.worlds import builtin_names, find_world

    if name == "world":
        worlds = {world: find_world(world).reaches for world in builtin_names()}
        reaching = {world for world, reaches in worlds.items() if reaches}
        assert reaching == {"browsergym", "miniwob", "textworld_express", "webarena"}
        return
    from terrella.policies.endpoint import Endpoint
    from terrella.policies.human import Human

    require_policy(Endpoint.Config())
    assert Endpoint.reaches and Human.reaches


def test_only_processes_of_one_command_take_each_others_local_settings():
    """`rebuild` believes what it reads: nothing that reads a folder may call it."""
    callers = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "rebuild":
                callers.add(path.relative_to(SOURCE).as_posix())
    assert callers == SENT_BETWEEN_OUR_PROCESSES


def test_every_loader_of_a_model_refuses_its_code():
    """Each `from_pretrained` and `from_config` passes `trust_remote_code=False`."""
    loaders = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in ("from_pretrained", "from_config", "load_dataset"):
                continue
            unpacked = {ast.unparse(each.value) for each in node.keywords if each.arg is None}
            loaders.append(path.name)
            assert "SAFE" in unpacked, f"{path}:{node.lineno}: {ast.unparse(node)}"
    assert len(loaders) >= 8
