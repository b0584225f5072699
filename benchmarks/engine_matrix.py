"""Runs every kind of pipeline on every engine, a few steps each: results/engine_matrix.json.

In the environment that .ci/verl makes (trl alone needs no vLLM and no verl):
    python benchmarks/engine_matrix.py agent|world_model|spa|... trl|vllm|verl [FOLDER]
    python benchmarks/engine_matrix.py all trl|vllm|verl [FOLDER]
A cell is the same config with other engine settings, as `--set` would change it.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import common
from tests.support import verl_cpu, vllm_cpu

MODEL = "tiny-0.3m-vllm"
ENGINES = {
    "trl": ((), lambda: dict(os.environ)),
    "vllm": (vllm_cpu.SETTINGS, lambda: {**os.environ, **vllm_cpu.environment()}),
    "verl": ((*verl_cpu.ENGINE_SETTINGS, *verl_cpu.LOCAL), verl_cpu.environment),
}
"""Settings and environment of each column."""


def agent(folder):
    from terrella.engines.configs import RlvrConfig, SftConfig
    from terrella.pipelines.rlvr import Rlvr
    from terrella.worlds.counter import Counter

    return Rlvr.Config(
        world=Counter.Config(goals=3, max_steps=4),
        model=MODEL,
        turn_tokens=6,
        max_turns=3,
        episode_tokens=128,
        warmup_examples=256,
        warmup=SftConfig(batch_size=16),
        rlvr=RlvrConfig(steps=2, groups=4, group_size=4),
        evaluate_on=16,
        out=folder / "run",
    )


def world_model(folder):
    return agent(folder).replace(ask="observation", turn_tokens=16)


def spa(folder):
    from terrella.recipes import find_recipe

    arm = find_recipe("spa_frozen_lake")().arms["spa"]
    rlvr = arm.rlvr.replace(
        algorithm="ppo", critic="separate", keep_share=0.5, steps=2, groups=4, group_size=4
    )
    small = arm.replace(rlvr=rlvr, max_turns=3, episode_tokens=512)
    return _small_arm(small, folder)


def evaluate(folder):
    """Evaluation alone: no self-play, no RL."""
    arm = spa(folder)
    nothing = arm.self_play.replace(trajectories=0)
    return arm.replace(self_play=nothing, rlvr=arm.rlvr.replace(steps=0))


def _small_arm(arm, folder):
    format_sft = arm.format_sft.replace(batch_size=16, epochs=1)
    self_play = arm.self_play.replace(
        trajectories=32, keep="all", sft=arm.self_play.sft.replace(batch_size=8, epochs=1)
    )
    return arm.replace(
        model=MODEL,
        format_examples=128,
        format_sft=format_sft,
        self_play=self_play,
        validation=arm.validation.replace(instances=4, samples=1),
        test=arm.test.replace(instances=8, samples=2),
        base_cache=folder / "bases",
        max_env_steps=0,
        out=folder / "run",
    )


def text_game(folder):
    from terrella.recipes.text_games import bytesized32_tiny

    arm = bytesized32_tiny().arms["exact"]
    return arm.replace(
        model=MODEL,
        states=40,
        actions=4,
        sft=arm.sft.replace(batch_size=8, epochs=1),
        rlvr=arm.rlvr.replace(steps=2, groups=4, group_size=4),
        test_records=16,
        base_cache=folder / "bases",
        out=folder / "run",
    )


def page_model(folder):
    from terrella.recipes.web import page_model as recipe

    config = recipe()
    for name in ("train", "test"):
        _write_pages(folder / name, count=24)
    return config.replace(
        model=MODEL,
        train=folder / "train",
        test=folder / "test",
        sft=config.sft.replace(epochs=1, batch_size=8),
        rlvr=config.rlvr.replace(steps=2, groups=4, group_size=4, kl=0.0),
        out=folder / "run",
    )


def _write_pages(folder, count):
    """Recorded steps on made-up pages: typing a word into a field."""
    from tests.support.made_episodes import made

    from terrella.core.run_folder import check_spec
    from terrella.core.types import Tree
    from terrella.data import store
    from terrella.data.parts import encode_part

    if folder.exists():
        return
    folder.mkdir(parents=True)
    episodes = []
    for number in range(count):
        page = f'[1] task "Enter {number}."\n[2] textbox ""\n[3] button "Submit"'
        typed = page.replace('textbox ""', f'textbox "" value="{number}" focused')
        episodes.append(made("pages", [Tree(page), Tree(typed)], [f"type 2 {number}"], seed=number))
    spec = check_spec(folder, {"config": {"seed": 1}})
    part = store.write_part(folder, encode_part(episodes, 0, spec))
    store.finish(folder, [part], {"target": {"episodes": count}})


def video(folder):
    from terrella.recipes.video import video_quick

    config = video_quick()
    return config.replace(
        width=96,
        heads=3,
        videos=config.videos.replace(out=folder / "films"),
        out=folder / "run",
    )


def certify(folder):
    from terrella.engines.configs import SftConfig
    from terrella.pipelines.certify.pipeline import Certify
    from terrella.pipelines.world_model import TrainWorldModel
    from terrella.show.progress import SilentProgress
    from terrella.worlds.counter import Counter

    world = Counter.Config(goals=20)
    model = TrainWorldModel.Config(
        world=world,
        model=MODEL,
        transitions=300,
        sft=SftConfig(batch_size=16),
        out=folder / "model",
    )
    TrainWorldModel(model).run(SilentProgress())
    return Certify.Config(
        world=world,
        folder=folder / "model",
        calibration=20,
        held_out=20,
        horizon_episodes=4,
        depth=2,
        ranked_on=3,
        exploited_on=2,
        plan_depth=1,
        samples=2,
    )


def sft(folder):
    """SFT alone, on episodes of a store, with the held-out loss before and after."""
    from terrella.engines.configs import SftConfig
    from terrella.pipelines.collect.pipeline import Collect
    from terrella.pipelines.sft.pipeline import Sft
    from terrella.policies.basic import Expert
    from terrella.show.progress import SilentProgress
    from terrella.worlds.counter import Counter

    world = Counter.Config(goals=20)
    store = folder / "store"
    Collect(Collect.Config(world=world, policy=Expert.Config(), episodes=120, out=store)).run(
        SilentProgress()
    )
    return Sft.Config(
        data=store,
        learn="agent",
        world=world,
        model=MODEL,
        validation_share=0.2,
        sft=SftConfig(batch_size=16, epochs=2),
        out=folder / "run",
    )


ROWS = {
    row.__name__: row
    for row in (agent, world_model, spa, text_game, page_model, video, evaluate, certify, sft)
}
PROMPT_TOKENS = {"spa": 256, "evaluate": 256, "text_game": 900, "page_model": 256, "video": 256}
"""The longest prompt of a row, where it is longer than 128."""


def run_cell(row, column, folder):
    """One pipeline on one engine, in this process; returns what it measured."""
    from terrella.core.config_override import override
    from terrella.core.instances import plain
    from terrella.show.progress import SilentProgress

    settings = ENGINES[column][0]
    if column == "verl" and row in PROMPT_TOKENS:
        settings = (*settings, f"verl.prompt_tokens={PROMPT_TOKENS[row]}")
    if column == "verl" and row == "evaluate":
        settings = (*settings, "sampler=auto")  # on servers that verl starts
    config = override(ROWS[row](folder), settings)
    with common.Timer() as timer:
        result = config.build().run(SilentProgress())
    measured = result.sections if row == "certify" else plain(result)
    return {
        "seconds": round(timer.seconds, 1),
        "result": {"certified": measured["certified"]} if row == "certify" else measured,
        "curve": _curve(getattr(config, "out", folder)),
    }


def _curve(out):
    """The metrics of a training curve that an engine must get right."""
    from terrella.core.files import read_json_lines

    path = out / "curve.jsonl"
    rows = read_json_lines(path) if path.exists() else []
    names = ("reward", "loss", "grad_norm", "mismatch/mean", "mismatch/max", "masked")
    return [{name: row[name] for name in names if name in row} for row in rows]


def start_cell(row, column, folder):
    """A cell in a process of its own, with the environment of its engine; its last line is JSON."""
    words = [sys.executable, __file__, "cell", row, column, str(folder)]
    env = {**ENGINES[column][1](), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=common.ROOT, env=env)
    if done.returncode:
        raise SystemExit(f"{row} on {column}: {(done.stdout + done.stderr)[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(row, column, folder=None):
    with tempfile.TemporaryDirectory() as scratch:
        for name in ROWS if row == "all" else (row,):
            place = Path(folder or scratch, f"{name}-{column}")
            place.mkdir(parents=True, exist_ok=True)
            cell = start_cell(name, column, place)
            command = common.command(name, column)
            common.write_part("engine_matrix", f"{name}/{column}", cell, command=command)


if __name__ == "__main__":
    if sys.argv[1] == "cell":
        common.quiet_trl()
        print(json.dumps(run_cell(sys.argv[2], sys.argv[3], Path(sys.argv[4]))))
    else:
        main(*sys.argv[1:])
