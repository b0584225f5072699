"""Why pushed blocks dissolve in the video model: arms, and what each shows about the block.

    python benchmarks/video_contact.py films arms ids policies [--arm base] [--seed 0]
`films` measures contact: the share of recorded steps in which the block moves. `arms` trains a
model for each arm (the same command resumes) and measures the block in held-out clips in which it
is pushed, the same clips for all arms: how far it is from where it should be, and how often it has
dissolved, by depth and by sampling temperature, before and after RLVR; beside it the truth through
the tokenizer (what its resolution costs) and "nothing moves". A block that is gone counts as one
that did not move. `ids` measures what there is to predict: the shares of patches and of ids that
change from frame to frame, and the nats that the fitted model needs for them. `policies` compares
eight policies in the arm that `--arm` names with the simulator. Seeds share films and tokenizer.
Results: results/video_contact.json. One core,
OMP_NUM_THREADS=1, one process at a time; about half an hour for each arm and seed.
"""

import argparse
import itertools
import json
from pathlib import Path

import common
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from terrella.core.types import Frames, Split
from terrella.data.videos import video_of
from terrella.engines.engine import open_sampler
from terrella.evals.video_policies import EvaluatePolicies
from terrella.pipelines.video.clips import ClipExamples, ClipTasks
from terrella.pipelines.video.pipeline import VideoModel
from terrella.pipelines.video.tokenizer import TrainTokenizer
from terrella.recipes.video import video_table
from terrella.rollout.rollout import Rollout
from terrella.show.progress import make_progress
from terrella.verify.frame_gain import frame_gain
from terrella.world_models.video import generated_frames, read_codec

common.quiet_trl()
torch.set_num_threads(1)
RESULT = "video_contact"
MOVED = 0.75
"""Pixels that the block's centre must move within a clip for it to be one of contact."""
SEEN = 0.8
"""Share of the block's largest area in a clip from which on its centre is not the hand's doing."""
LEAST_SEEN = 2
DISSOLVED = 0.5
"""Share of the block's true area below which it has dissolved."""
TEMPERATURES = (0.3, 0.5, 0.7, 1.0)
CLIPS = 48
FILMS = 60
"""Held-out films in which changes are counted."""
ARMS = {
    # Films as in video_table: 20%, 50% and 100% of the steps are random, half of them of reach.
    "base": {"films": "mixed"},
    # Three times as many films, two thirds of them of pushing, with at most 50% random steps.
    "contact": {"films": "contact"},
    # Ids that differ from the frame before count four times in the fit.
    "weight": {"films": "contact", "changed_weight": 4.0},
    # Four optimiser steps of RLVR for each batch of episodes instead of one.
    "updates": {"films": "contact", "mini_batches": 4},
    # A fifth of RLVR's learning rate.
    "slow": {"films": "contact", "learning_rate": 3e-5},
    # Three times as many clips to fit.
    "long": {"films": "contact", "clips": 72_000},
    # Ids of a patch are computed from that patch alone.
    "local": {"films": "local"},
    # Also ten times as many films, twice the clips, 64 bins for each number of an action instead of
    # 16; the fit alone, without RLVR.
    "more": {"films": "more", "bins": 64, "clips": 48_000, "steps": 0},
}


def recipe(arm, seed):
    config, settings = video_table(), dict(ARMS[arm])
    films = settings.pop("films")
    parts = settings.pop("mini_batches", 1)
    rlvr = config.rlvr.replace(
        steps=settings.pop("steps", config.rlvr.steps) * parts,
        mini_batches=parts,
        save_every=config.rlvr.save_every * parts,
        learning_rate=settings.pop("learning_rate", config.rlvr.learning_rate),
    )
    videos = config.videos.replace(out=RUNS / f"films-{films}")
    if films != "mixed":
        push, reach = videos.worlds
        videos = videos.replace(worlds=(push, push, reach), shares=(0.0, 0.2, 0.5), episodes=240)
    if films in ("local", "more"):
        videos = with_local_ids(videos)
    if films == "more":
        videos = videos.replace(episodes=2400)
    out = RUNS / f"{arm}-{seed}"
    return config.replace(videos=videos, rlvr=rlvr, seed=seed, out=out, **settings)


def with_local_ids(videos):
    """Frames in which ids are computed from their own patches."""
    tokenizer = videos.trainer.tokenizer.replace(local=True)
    return videos.replace(trainer=videos.trainer.replace(tokenizer=tokenizer))


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
    """Pixels that the block moves, over the frames in which the hand hides little of it."""
    blocks = [block(frame) for frame in frames]
    whole = max(area for area, _ in blocks)
    centres = [centre for area, centre in blocks if centre is not None and area >= SEEN * whole]
    if len(centres) < LEAST_SEEN:
        return 0.0
    return float(max(np.linalg.norm(centre - centres[0]) for centre in centres))


def block_rows(predicted, real, start):
    """By depth: whether the block is gone, and how many pixels off its centre is.

    A block that is gone is as far off as one that stays where it was in the frame `start`.
    """
    rows = []
    _, start_centre = block(start)
    for guess, truth in zip(predicted, real, strict=True):
        (area, centre), (true_area, true_centre) = block(guess), block(truth)
        gone = centre is None or area < DISSOLVED * true_area
        distance = None
        if true_centre is not None and start_centre is not None:
            distance = float(np.linalg.norm((start_centre if gone else centre) - true_centre))
        rows.append({"distance": distance, "gone": bool(gone)})
    return rows


def summarized(clips):
    """Means over clips, by depth; distances where the true block can be seen."""
    depths = []
    for rows in zip(*clips, strict=True):
        seen = [row["distance"] for row in rows if row["distance"] is not None]
        depths.append(
            {
                "gone": float(np.mean([row["gone"] for row in rows])),
                "distance": float(np.mean(seen)),
                "n": len(rows),
            }
        )
    return depths


def contact_clips(config):
    """Held-out clips in which the block moves: of the films of contact, for every arm.

    All sets of films but `mixed` hold out the same ones.
    """
    mixed = config.videos.out.name == "films-mixed"
    videos = TrainTokenizer(recipe("contact", 0).videos if mixed else config.videos)
    with make_progress() as progress:
        videos.run(progress)
    shards = videos.shards(Split.TEST)
    tasks = []
    for task in ClipTasks(shards, config.horizon, window=config.window).in_turn(shards.count):
        steps = (task.transition, *task.following)
        frames = [task.situation.observation, *(step.next_observation for step in steps)]
        if moved([frame.array[-1] for frame in frames]) >= MOVED:
            tasks.append(task)
    return tasks[:CLIPS]


def start_frame(task):
    return task.situation.observation.array[-1]


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
                    block_rows([start_frame(task)] * config.horizon, frames, start_frame(task))
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
            "after_minus_before": differences(result),
        }
        write(f"arm {arm} seed {config.seed}", row)


def differences(result):
    """What RLVR changed, clip by clip."""
    return {
        name: common.mean_row(np.subtract(after, result.before.clips[name]).tolist())
        for name, after in result.after.clips.items()
        if name in ("value", "lpips", "psnr", "ssim")
    }


def through_tokenizer(codec, tasks, real):
    rows = []
    for task, frames in zip(tasks, real, strict=True):
        first = (*task.situation.history, task.transition)[0].observation.array[-1]
        _, ids = codec.tokenizer.write(np.stack(frames), first)
        rows.append(block_rows(codec.tokenizer.read(first, ids), frames, start_frame(task)))
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
            rows.append(block_rows(drawn, frames, start_frame(task)))
            values.append(episode.turn_rewards)
        changed = np.array(values).mean(0).tolist()
        found[str(temperature)] = {"block": summarized(rows), "changed_region": changed}
    return found


def ids():
    """What changes from frame to frame, in pixels and in ids, and what it costs to predict."""
    for arm in chosen_arms():
        config = recipe(arm, ARGUMENTS.seed)
        codec = read_codec(config.videos.out, window=config.window)
        model = AutoModelForCausalLM.from_pretrained(config.out / "fitted").eval()
        videos = TrainTokenizer(config.videos)
        row = {
            "seed": config.seed,
            **changes(itertools.islice(videos.episodes(Split.TEST), FILMS), codec.tokenizer),
            "nats": {
                split.value: nats(model, codec, videos.shards(split), config.horizon)
                for split in (Split.TRAIN, Split.TEST)
            },
        }
        write(f"ids {arm} seed {config.seed}", row)


def changes(episodes, tokenizer):
    """Shares of patches and of their ids that change in a step, and the tokenizer's own error."""
    patches, changed, errors, gains = [], [], [], []
    for episode in episodes:
        video = video_of(episode)
        _, written = tokenizer.write(video, video[0])
        steps = np.abs(np.diff(video.astype(float), axis=0)).max(-1)
        side = tokenizer.config.stride
        cells = steps.reshape(len(steps), -1, side, steps.shape[2] // side, side).max((2, 4))
        patches += (cells > 0).mean((1, 2)).tolist()
        changed += (np.diff(written, axis=0) != 0).mean(1).tolist()
        read = tokenizer.read(video[0], written) / 255.0
        pixels = video / 255.0
        errors += ((read - pixels)[1:] ** 2).mean((1, 2, 3)).tolist()
        gains += map(frame_gain, read[1:], pixels[1:], pixels[:-1])
    return {
        "steps": len(patches),
        "patches_that_change": float(np.mean(patches)),
        "ids_that_change": float(np.mean(changed)),
        "tokenizer_psnr": float(np.mean(-10 * np.log10(errors))),
        "tokenizer_gain": float(np.mean(gains)),
    }


@torch.no_grad()
def nats(model, codec, shards, horizon):
    """Nats a frame and an id, given the true frames before: of ids that change and of others."""
    examples = ClipExamples(
        shards, codec, horizon=horizon, count=CLIPS * 8, seed=1, changed_weight=2.0
    )
    allowed = torch.tensor(codec.allowed_ids)
    costs = {True: [], False: []}
    for example in examples:
        sequence = torch.tensor([[*example.prompt_ids, *example.completion_ids]])
        logits = model(sequence).logits[0, len(example.prompt_ids) - 1 : -1].float()
        rest = logits.new_full(logits.shape, -torch.inf)
        rest[:, allowed] = logits[:, allowed]
        targets = torch.tensor(example.completion_ids)
        cost = -rest.log_softmax(-1)[torch.arange(len(targets)), targets]
        for value, is_frame, weight in zip(
            cost.tolist(), example.mask, example.columns["weight"], strict=True
        ):
            if is_frame:
                costs[weight > 1].append(value)
    everything = costs[True] + costs[False]
    return {
        "frames": len(everything) // codec.frame_tokens,
        "a_frame": float(np.mean(everything)) * codec.frame_tokens,
        "an_id_that_changes": float(np.mean(costs[True])),
        "another_id": float(np.mean(costs[False])),
    }


def policies():
    """Eight policies in the model of each arm and in the simulator, task by task."""
    for arm in chosen_arms():
        config = recipe(arm, ARGUMENTS.seed)
        for task in ARGUMENTS.tasks:
            world = config.world.replace(task=task)
            comparison = EvaluatePolicies(
                EvaluatePolicies.Config(
                    world=world,
                    videos=config.videos.out,
                    model=config.out / ARGUMENTS.model,
                    temperature=ARGUMENTS.temperature,
                    starts=ARGUMENTS.starts,
                    seed=config.seed,
                )
            ).run()
            part = f"policies {arm} {ARGUMENTS.model} {task} seed {config.seed}"
            rows = common.read_rows(RESULT) or {}
            rows[part] = {
                each["policy"]: {
                    where: [int(value) for value in each.pop(f"{where}_by_instance")]
                    for where in ("real", "imagined")
                }
                for each in comparison["policies"]
            }
            common.write_rows(RESULT, rows)
            write(part, {"temperature": ARGUMENTS.temperature} | comparison)


# --- results --------------------------------------------------------------------------------------


def chosen_arms():
    return [ARGUMENTS.arm] if ARGUMENTS.arm else list(ARMS)


def write(part, row):
    given = vars(ARGUMENTS).items()
    options = [
        f"--{name}={value}" for name, value in given if name in CHANGES and value is not None
    ]
    command = common.command(*ARGUMENTS.parts, *options, OMP_NUM_THREADS=1)
    common.write_part(RESULT, part, row, command=command)
    print(json.dumps(row, default=str)[:600], flush=True)


CHANGES = ("seed", "arm", "temperature", "starts", "model")
"""Options that say what was measured."""
PARTS = {f.__name__: f for f in (films, arms, ids, policies)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS))
    parser.add_argument("--runs", type=Path, default=Path("runs/video_contact"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arm", choices=sorted(ARMS))
    parser.add_argument("--tasks", nargs="+", default=["push", "reach"], help="of policies")
    parser.add_argument("--temperature", type=float, default=0.5)
    parser.add_argument("--starts", type=int, default=160, help="held-out initial states")
    parser.add_argument("--model", choices=("fitted", "model"), default="model")
    ARGUMENTS = parser.parse_args()
    RUNS = ARGUMENTS.runs.resolve()
    for name in ARGUMENTS.parts:
        PARTS[name]()
