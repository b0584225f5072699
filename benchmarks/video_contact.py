"""Why pushed blocks dissolve in the video model: arms, and what each shows about the block.

    python benchmarks/video_contact.py films arms policies [--seed 0] [--arm base]
`films` measures contact: the share of recorded steps in which the block moves. `arms` trains a
model for each arm (the same command resumes) and measures the block in held-out clips in which it
is pushed: how far it is from where it should be, and how often it has dissolved, by depth and by
sampling temperature, before and after RLVR; beside it the truth through the tokenizer (what its
resolution costs) and "nothing moves". `policies` compares policies in the arm that `--arm` names.
Results: results/video_contact.json. One core, OMP_NUM_THREADS=1; about 3 hours for seed 0 of all
arms (estimated from video_table: 8 minutes for a tokenizer, 12 for a fit, 8 for RLVR).
"""

import argparse
import json
from pathlib import Path

import common
import numpy as np
import torch

from terrella.core.types import Frames, Split
from terrella.data.videos import video_of
from terrella.engines.engine import open_sampler
from terrella.evals.video_policies import EvaluatePolicies
from terrella.pipelines.video.clips import ClipTasks
from terrella.pipelines.video.pipeline import VideoModel
from terrella.pipelines.video.tokenizer import TrainTokenizer
from terrella.recipes.video import video_table
from terrella.rollout.rollout import Rollout
from terrella.show.progress import make_progress
from terrella.world_models.video import generated_frames, read_codec

common.quiet_trl()
torch.set_num_threads(1)
MOVED = 0.75
"""Pixels that the block's centre must move within a clip for it to be one of contact."""
DISSOLVED = 0.5
"""Share of the block's true area below which it has dissolved."""
TEMPERATURES = (0.3, 0.5, 0.7, 1.0)
CLIPS = 48
ARMS = {
    # Films as in video_table: 20%, 50% and 100% of the steps are random, half of them of reach.
    "base": {"films": "mixed"},
    # Three times as many films, two thirds of them of pushing, with at most 50% random steps.
    "contact": {"films": "contact"},
    # Ids that differ from the frame before count four times in the fit.
    "weight": {"films": "contact", "changed_weight": 4.0},
    # Three times as many clips to fit.
    "long": {"films": "contact", "clips": 72_000},
}


def recipe(arm, seed):
    config, settings = video_table(), dict(ARMS[arm])
    films = settings.pop("films")
    videos = config.videos.replace(out=RUNS / f"films-{films}")
    if films == "contact":
        push, reach = videos.worlds
        videos = videos.replace(worlds=(push, push, reach), shares=(0.0, 0.2, 0.5), episodes=240)
    return config.replace(videos=videos, seed=seed, out=RUNS / f"{arm}-{seed}", **settings)


# --- the block ------------------------------------------------------------------------------------


def block(frame):
    """The area of the red block in pixels and its centre; the centre is None without any."""
    red, green, blue = (frame[..., channel].astype(float) for channel in range(3))
    weight = np.clip((red - np.maximum(green, blue) - 40) / 80, 0, 1)
    area = weight.sum()
    if area < 1:
        return area, None
    rows, columns = np.indices(weight.shape)
    return area, np.array([(rows * weight).sum(), (columns * weight).sum()]) / area


def moved(frames):
    centres = [centre for _, centre in map(block, frames) if centre is not None]
    if len(centres) < len(frames):
        return 0.0  # the hand hides it
    return float(max(np.linalg.norm(centre - centres[0]) for centre in centres))


def block_rows(predicted, real):
    """By depth: distance of the block's centre in pixels (None if it is gone), and its area."""
    rows = []
    for guess, truth in zip(predicted, real, strict=True):
        (area, centre), (true_area, true_centre) = block(guess), block(truth)
        gone = area < DISSOLVED * true_area
        far = None if centre is None or gone else float(np.linalg.norm(centre - true_centre))
        rows.append({"distance": far, "gone": bool(gone)})
    return rows


def summarized(clips):
    """Means over clips, by depth; distances only of blocks that are there."""
    depths = []
    for rows in zip(*clips, strict=True):
        there = [row["distance"] for row in rows if row["distance"] is not None]
        depths.append(
            {
                "gone": float(np.mean([row["gone"] for row in rows])),
                "distance": float(np.mean(there)) if there else None,
                "n": len(rows),
            }
        )
    return depths


def contact_clips(config):
    """Held-out clips of pushing in which the block moves."""
    shards = TrainTokenizer(config.videos).shards(Split.TEST)
    tasks = []
    for task in ClipTasks(shards, config.horizon, window=config.window).in_turn(shards.count):
        steps = (task.transition, *task.following)
        frames = [task.situation.observation, *(step.next_observation for step in steps)]
        if moved([frame.array[-1] for frame in frames]) >= MOVED:
            tasks.append(task)
    return tasks[:CLIPS]


def true_frames(task):
    steps = (task.transition, *task.following)
    return [step.next_observation.array[-1] for step in steps]


# --- parts ----------------------------------------------------------------------------------------


def films():
    """The share of steps with contact in each set of films, for training and held out."""
    for arm in ("base", "contact"):
        config = recipe(arm, 0)
        videos = TrainTokenizer(config.videos)
        with make_progress() as progress:
            videos.run(progress)
        row = {"seed": 0}
        for split in (Split.TRAIN, Split.TEST):
            steps = [
                moved([video[t], video[t + 1]]) >= MOVED / 2
                for video in map(video_of, videos.episodes(split))
                for t in range(len(video) - 1)
            ]
            row[split.value] = {"steps": len(steps), "contact": float(np.mean(steps))}
        write(f"films {ARMS[arm]['films']}", row)


def arms():
    for arm in chosen_arms():
        config = recipe(arm, ARGUMENTS.seed)
        with make_progress() as progress, common.Timer() as timer:
            result = VideoModel(config).run(progress)
        codec = read_codec(config.videos.out, window=config.window)
        tasks = contact_clips(config)
        real = [true_frames(task) for task in tasks]
        row = {
            "seed": config.seed,
            "cpu_s": timer.cpu_seconds,
            "clips": len(tasks),
            "still": summarized(
                [
                    block_rows([task.situation.observation.array[-1]] * config.horizon, frames)
                    for task, frames in zip(tasks, real, strict=True)
                ]
            ),
            "tokenizer": summarized(through_tokenizer(codec, tasks, real)),
            "before": by_temperature(config, codec, "fitted", tasks, real),
            "after": by_temperature(config, codec, "model", tasks, real),
            "means": {
                when: {name: metric.mean for name, metric in part.means.items()}
                for when, part in (("before", result.before), ("after", result.after))
            },
        }
        write(f"arm {arm} seed {config.seed}", row)


def through_tokenizer(codec, tasks, real):
    rows = []
    for task, frames in zip(tasks, real, strict=True):
        first = (*task.situation.history, task.transition)[0].observation.array[-1]
        _, ids = codec.tokenizer.write(np.stack(frames), first)
        rows.append(block_rows(codec.tokenizer.read(first, ids), frames))
    return rows


def by_temperature(config, codec, which, tasks, real):
    sampler = open_sampler(config.out / which, work=config.out / "engine")
    found = {}
    for temperature in TEMPERATURES:
        settings = VideoModel(config.replace(temperature=temperature)).rollout_config()
        rollout = Rollout(settings, codec)
        rows, values = [], []
        episodes = rollout.run(sampler, tasks, group_size=1, seed=1)
        for task, frames, episode in zip(tasks, real, episodes, strict=True):
            replies = codec.read_rollout(task.situation, generated_frames(episode))
            drawn = [frame.array[-1] for frame in replies if isinstance(frame, Frames)]
            rows.append(block_rows(drawn, frames))
            values.append(episode.turn_rewards)
        changed = np.array(values).mean(0).tolist()
        found[str(temperature)] = {"block": summarized(rows), "changed_region": changed}
    return found


def policies():
    """Eight policies in the model of each arm and in the simulator, task by task."""
    for arm in chosen_arms():
        config = recipe(arm, ARGUMENTS.seed)
        for task in ("push", "reach"):
            world = config.world.replace(task=task)
            comparison = EvaluatePolicies(
                EvaluatePolicies.Config(
                    world=world,
                    videos=config.videos.out,
                    model=config.out / "model",
                    temperature=ARGUMENTS.temperature,
                    seed=config.seed,
                )
            ).run()
            write(f"policies {arm} {task} seed {config.seed}", comparison)


# --- results --------------------------------------------------------------------------------------


def chosen_arms():
    return [ARGUMENTS.arm] if ARGUMENTS.arm else list(ARMS)


def write(part, row):
    command = common.command(*ARGUMENTS.parts, OMP_NUM_THREADS=1)
    common.write_part("video_contact", part, row, command=command)
    print(json.dumps(row, default=str)[:600], flush=True)


PARTS = {f.__name__: f for f in (films, arms, policies)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS))
    parser.add_argument("--runs", type=Path, default=Path("runs/video_contact"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arm", choices=sorted(ARMS))
    parser.add_argument("--temperature", type=float, default=0.5)
    ARGUMENTS = parser.parse_args()
    RUNS = ARGUMENTS.runs.resolve()
    for name in ARGUMENTS.parts:
        PARTS[name]()
