"""What the world model of self-play is worth without RL: replies chosen by their own predictions.

    OMP_NUM_THREADS=1 python benchmarks/spa_choose.py NAME=MODEL... [--seed 0] [--instances 128]
Each MODEL of `spa_smollm2_lake` (such as base=.../bases/X/model self_play=.../self_play) writes 16
replies to each test instance: actions, and what each of them will change. Of the first k replies
that one is chosen which predicts that it reaches the goal, and the first reply if none does. The
choice sees nothing of the world. Beside it: one reply, and whether any of the k wins (pass@k, what
a perfect choice would reach). Results: results/spa_smollm2_choose.json and its rows; seed by seed.
"""

import argparse
from pathlib import Path

import common
from recompute import CHOICES, choices

from terrella.core.types import Split
from terrella.engines.engine import load_tokenizer, open_sampler
from terrella.pipelines.spa.pipeline import Spa
from terrella.recipes.spa.smollm2 import spa_smollm2_lake
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import EvenTasks

common.quiet_trl()
RESULT = "spa_smollm2_choose"
REPLIES = max(CHOICES)


def replies(model, instances, seed):
    """For each instance and each reply: whether it won, and whether it predicted to."""
    config = spa_smollm2_lake().arms["spa"]
    codec = config.codec().make(load_tokenizer(model))
    tasks = EvenTasks(config.world, instances, split=Split.TEST, seed=seed)
    sampler = open_sampler(model, work=Path(model).parent / "engine")
    won, predicted = [], []
    with Rollout(Spa(config).episode_source().rollout, codec) as rollout:
        asked = [tasks(index) for index in range(len(tasks.seeds))]
        for episode in rollout.run(sampler, asked, group_size=REPLIES, seed=seed):
            won.append(int(episode.outcome.value == 1))
            predicted.append(int(predicts_a_win(codec, episode, config.max_actions)))
    return {"won": by_instance(won), "predicted": by_instance(predicted)}


def by_instance(values):
    return [values[start : start + REPLIES] for start in range(0, len(values), REPLIES)]


def predicts_a_win(codec, episode, most_actions):
    """Whether the reply predicts that it reaches the goal before a hole."""
    changes = [change for _, change in codec.predicted_changes(episode.completion_ids)]
    ends = [change for change in changes[:most_actions] if "goal" in change or "hole" in change]
    return bool(ends) and "goal" in ends[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="NAME=FOLDER")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--instances", type=int, default=128)
    arguments = parser.parse_args()
    for named in arguments.models:
        name, model = named.split("=", 1)
        part = f"{name} seed {arguments.seed}"
        rows = common.read_rows(RESULT)
        rows[part] = replies(model, arguments.instances, arguments.seed)
        common.write_rows(RESULT, rows)
        command = common.command("NAME=MODEL", f"--seed {arguments.seed}", OMP_NUM_THREADS=1)
        row = choices({}, rows)[part]
        common.write_part(RESULT, part, row, command=command)
        print(part, row, flush=True)


if __name__ == "__main__":
    main()
