"""Hostile run folders: what a stranger could put into a manifest, a store or a model's folder.

Each case changes one thing in a folder that is otherwise as `train-world-model` leaves it.
    write_case(Path("runs/evil"), CASES["a program as the browser"])
"""

import functools
import json
import os
import pickle
from dataclasses import dataclass, field
from typing import Any

from tests.support.manifests import write_manifest

from terrella.core.config import dump
from terrella.core.episode import play
from terrella.core.run_folder import SCHEMA, check_spec, run_spec
from terrella.data.parts import encode_part
from terrella.data.store import finish, write_part
from terrella.pipelines.collect.pipeline import Collect
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Random
from terrella.recipes.tiny import tiny_counter
from terrella.recipes.trust import lake_model
from terrella.worlds.counter import Counter

COUNTER = {"class": "terrella.worlds.counter:Counter"}
MINIWOB = "terrella.worlds.miniwob.env:MiniWob"
WEBARENA = "terrella.worlds.webarena.env:WebArena"
BROWSERGYM = "terrella.worlds.browsergym:BrowserGym"
ENDPOINT = "terrella.policies.endpoint:Endpoint"
MIXTURE = "terrella.policies.basic:Mixture"
ISOLATED = "terrella.verify.isolated:Isolated"
VLLM = "terrella.engines.vllm.server:VllmServer"
IMAGINED = "terrella.world_models.imagine:ImaginedWorld"
EVIL = "http://127.0.0.1:9/v1"
"""Nobody may send anything there."""
SCRIPT = "#!/bin/sh\ntouch {outside}/ran\n"
MODULE = "import pathlib; pathlib.Path({outside!r}, 'imported').touch()\n"
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "vocab_size": 16,
}


@dataclass(frozen=True)
class Case:
    """One hostile folder: parts of its manifests, and files beside them."""

    world: Any = field(default_factory=lambda: COUNTER)
    policy: Any = field(default_factory=lambda: {"class": "terrella.policies.basic:Random"})
    config: dict[str, Any] = field(default_factory=dict)
    """Further keys of the run's config."""
    model: dict[str, Any] = field(default_factory=dict)
    """Files in `model/`: JSON, text or bytes."""
    files: dict[str, Any] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    """Links, to a path outside of the folder."""
    part: str = ""
    """Another name of the store's part in its manifest."""


class _Bomb:
    def __reduce__(self):
        return os.system, ("touch {outside}/unpickled",)


def _nested(depth):
    policy = {"class": "terrella.policies.basic:Random"}
    for _ in range(depth):
        policy = {"class": MIXTURE, "first": policy}
    return policy


WORLDS = {
    "a program as the browser": {"class": MINIWOB, "executable": "{folder}/notes.txt"},
    "a program as the browser, by a relative path": {
        "class": MINIWOB,
        "families": ["click-test"],
        "executable": "notes.txt",
    },
    "a program and sites of its own": {
        "class": WEBARENA,
        "executable": "{folder}/notes.txt",
        "addresses": {"__SHOPPING__": EVIL},
    },
    "tasks and cookies from a path": {
        "class": WEBARENA,
        "tasks": "{folder}/tasks.json",
        "cookies": "{outside}",
    },
    "a module to import": {"class": BROWSERGYM, "tasks": ["x:y"], "needs": ["this"]},
    "a module of the folder to import": {"class": BROWSERGYM, "tasks": ["x"], "needs": ["evilmod"]},
    "a module in the id of an environment": {"class": BROWSERGYM, "tasks": ["evilmod:x-v0"]},
    "arguments of a library": {
        "class": BROWSERGYM,
        "tasks": ["browsergym/openended"],
        "options": {"pw_chromium_kwargs": {"executable_path": "{folder}/notes.txt"}},
    },
    "Java": {"class": "terrella.worlds.textworld_express:TextWorldExpress", "params": "x=1;y"},
    "the command line again": {"class": "terrella.__main__:X"},
    "the command line again, by its package": {"class": "terrella.cli.__main__:X"},
    "a module of the command line": {"class": "terrella.cli.app:console"},
    "a recipe": {"class": "terrella.recipes.tiny:tiny_counter"},
    "a module of the current folder": {"class": "evilmod:Evil"},
    "a function": {"class": "os:system"},
    "a class of the standard library": {"class": "subprocess:Popen", "args": ["id"]},
    "a module that talks": {"class": "antigravity:X"},
    "a way through attributes": {
        "class": "terrella.core.config:Configurable.__init__.__globals__.os.system"
    },
    "no text as a class": {"class": ["os", "system"]},
    "a path as a module": {"class": "terrella.worlds.../../evilmod:Evil"},
    "control characters": {"class": "terrella.worlds.counter\n\x1b[2J:Counter"},
    "a long name": {"class": "terrella.worlds." + "x" * 100_000 + ":Counter"},
    "a model's folder elsewhere": {
        "class": IMAGINED,
        "world": COUNTER,
        "folder": "{outside}",
    },
    "a browser inside an imagined world": {
        "class": IMAGINED,
        "world": {"class": MINIWOB, "executable": "{folder}/notes.txt"},
        "folder": "{folder}",
    },
    "a file outside as data": {
        "class": "terrella.worlds.metamathqa.env:MetaMathQA",
        "path": "/etc/passwd",
    },
    "folders outside as data": {
        "class": "terrella.worlds.bytesized32.env:ByteSized32",
        "path": "{outside}",
        "rules_folder": "{outside}",
    },
    "a catalogue outside": {"class": "terrella.worlds.webshop.env:WebShop", "data": "/etc"},
    "a server as the world": {"class": VLLM, "arguments": ["--x"], "worker_extension": "evilmod.X"},
    "a verifier as the world": {"class": ISOLATED, "inner": COUNTER, "imports": ["evilmod"]},
    "a collection as the world": {
        "class": "terrella.pipelines.collect.pipeline:Collect",
        "world": COUNTER,
        "policy": {"class": ENDPOINT, "url": EVIL},
        "out": "{outside}/store",
        "episodes": 1,
        "workers": 2,
    },
    "an unknown key": {**COUNTER, "executable": "{folder}/notes.txt"},
    "a list as the world": [COUNTER],
}
POLICIES = {
    "an address and the name of a key": {
        "class": ENDPOINT,
        "url": EVIL,
        "key_variable": "HF_TOKEN",
    },
    "an address inside a mixture": {
        "class": MIXTURE,
        "first": {"class": ENDPOINT, "url": EVIL, "key_variable": "HF_TOKEN"},
        "share": 0.5,
    },
    "an address of another scheme": {"class": ENDPOINT, "url": "file:///etc/passwd"},
    "a person as the policy": {"class": "terrella.policies.human:Human"},
    "a child process as the policy": {"class": ISOLATED, "inner": COUNTER, "imports": ["this"]},
    "a server as the policy": {"class": VLLM, "arguments": ["--x"]},
    "a world inside a mixture": {"class": MIXTURE, "first": {"class": MINIWOB}},
    "a pipeline as the policy": {"class": "terrella.pipelines.rlvr:Rlvr", "world": COUNTER},
    "a deep mixture": _nested(60),
}
MODELS = {
    "code in a model's config": {
        "config.json": {**LLAMA, "auto_map": {"AutoConfig": "evilmod.Evil"}},
        "evilmod.py": MODULE,
    },
    "code in a tokenizer's config": {
        "config.json": LLAMA,
        "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["evilmod.Evil", None]}},
        "evilmod.py": MODULE,
    },
    "code in an adapter's config": {
        "config.json": LLAMA,
        "adapter_config.json": {
            "peft_type": "LORA",
            "base_model_name_or_path": "someone/base",
            "megatron_config": {"x": 1},
            "megatron_core": "evilmod",
        },
    },
    "a compiled kernel of a stranger": {
        "config.json": {**LLAMA, "_attn_implementation": "someone/kernel"},
    },
    "pickled weights": {"config.json": LLAMA, "pytorch_model.bin": pickle.dumps(_Bomb())},
    "an unknown kind of model": {"config.json": {"model_type": "evilmod", "auto_map": {"a": "b"}}},
}
OTHERS = {
    "engines in the run's config": Case(
        config={
            "engine": "tinker",
            "sampler": "vllm",
            "tinker": {"class": "terrella.engines.configs:TinkerConfig", "url": EVIL},
            "vllm": {"class": VLLM, "worker_extension": "evilmod.X", "arguments": ["--x"]},
            "verl": {"class": "terrella.engines.configs:VerlConfig", "keys": ["+x=1"]},
        }
    ),
    "a video model with videos elsewhere": Case(
        config={
            "class": "terrella.pipelines.video.pipeline:VideoModel",
            "videos": {
                "class": "terrella.pipelines.video.tokenizer:TrainTokenizer",
                "worlds": [{"class": MINIWOB, "executable": "{folder}/notes.txt"}],
                "stores": ["/etc"],
                "out": "{outside}",
            },
        }
    ),
    "pages that are written through a link": Case(links={"view": "", "data/view": ""}),
    "a certificate that is written through a link": Case(links={"certificate": ""}),
    "a page that is a link": Case(
        files={"view/x.txt": "", "data/view/x.txt": ""},
        links={"view/view.html": "/page", "data/view/view.html": "/page"},
    ),
    "temporary files that are links": Case(
        links={"spec.json.tmp": "/spec", "manifest.json.tmp": "/manifest"}
    ),
    "a part elsewhere": Case(part="../../outside/part.parquet"),
    "a part that is absolute": Case(part="/etc/passwd"),
    "a table with paths": Case(files={"table.json": {"arms": {"x": "/etc/passwd"}, "class": "a"}}),
    "a certificate of strange types": Case(
        files={"certificate/certificate.json": {"certified": True, "reasons": 3, "risk": []}}
    ),
    "deep JSON": Case(files={"curve.jsonl": "[" * 100_000}),
    "a name of a base model": Case(
        model={"config.json": LLAMA, "tinker.json": {"base": EVIL, "state": EVIL}}
    ),
}
CASES = {
    **{f"world: {name}": Case(world=world) for name, world in WORLDS.items()},
    **{f"policy: {name}": Case(policy=policy) for name, policy in POLICIES.items()},
    **{f"model: {name}": Case(model=files) for name, files in MODELS.items()},
    **OTHERS,
}


@functools.cache
def _episodes():
    world, policy = Counter.Config().build(), Random.Config().build()
    return tuple(play(world, policy, seed=seed, noise_seed=seed + 1) for seed in range(3))


def write_case(folder, case, outside):
    """Write the run, its store, its model and two folders that a command would resume."""
    fill = functools.partial(_fill, folder=folder, outside=outside)
    folder.mkdir(parents=True)
    world, policy = fill(case.world), fill(case.policy)
    trained = dump(TrainWorldModel.Config(world=Counter.Config(), policy=Random.Config()))
    config = {**trained, "world": world, "policy": policy, **fill(case.config)}
    write_manifest(folder, config, {})
    _write_store(folder / "data", world, policy, case.part)
    _write_resumed(folder, world, policy)
    (folder / "curve.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 1}\n')
    program = folder / "notes.txt"
    program.write_text(SCRIPT.format(outside=outside))
    program.chmod(0o755)
    for name, content in {**{f"model/{k}": v for k, v in case.model.items()}, **case.files}.items():
        _write(folder / name, fill(content))
    for name, target in case.links.items():
        (folder / name).symlink_to(f"{outside}{target}")


def _fill(value, folder, outside):
    if isinstance(value, dict):
        return {key: _fill(item, folder, outside) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, folder, outside) for item in value]
    if isinstance(value, bytes):
        return value.replace(b"{outside}", str(outside).encode())
    if isinstance(value, str) and value == MODULE:
        return value.format(outside=str(outside))
    if isinstance(value, str):
        return value.replace("{folder}", str(folder)).replace("{outside}", str(outside))
    return value


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def _write_store(folder, world, policy, part_name=""):
    """A whole store of real episodes, whose manifest lies about everything else."""
    folder.mkdir()
    honest = Collect.Config(
        world=Counter.Config(), policy=Random.Config(), out=folder, episodes=len(_episodes())
    )
    spec = run_spec(honest, Collect.ignored)
    spec_hash = check_spec(folder, spec)
    part = write_part(folder, encode_part(list(_episodes()), first=0, spec=spec_hash))
    config = {**spec["config"], "world": world, "policy": policy}
    finish(folder, [part], {"config": config, "target": {"episodes": len(_episodes())}})
    if part_name:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["parts"][0]["name"] = part_name
        (folder / "manifest.json").write_text(json.dumps(manifest))


def _write_resumed(folder, world, policy):
    """Runs that a stranger has "finished" for the user's recipes, and one of other settings."""
    for name, config in (("rlvr", tiny_counter()), ("other", tiny_counter()), ("wm", lake_model())):
        config = config.replace(out=folder / name)
        (folder / name).mkdir()
        spec = {"schema": SCHEMA, **run_spec(config, config.owner.ignored)}
        if name == "other":
            spec["config"] = {**spec["config"], "world": world, "policy": policy}
        else:
            hostile = {**dump(config), "world": world, "policy": policy}
            write_manifest(folder / name, hostile, {})
        (folder / name / "spec.json").write_text(json.dumps(spec))
