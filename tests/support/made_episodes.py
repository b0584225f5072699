"""Handmade episodes, one for each kind of observation, with right and wrong predictions."""

import numpy as np

from terrella.core.types import (
    Episode,
    Frames,
    Prediction,
    Split,
    State,
    Status,
    Stop,
    Text,
    Transition,
    Tree,
    Verdict,
)
from terrella.show.counterfactuals import CounterfactualBranch, StepPrediction
from terrella.show.page_data import Extras


def made(world, seen, actions, *, value=1.0, seed=0):
    steps = tuple(
        Transition(
            observation=a,
            action=act,
            next_observation=b,
            reward=0.1,
            terminated=b is seen[-1],
            info={"valid": True, "effective": True, "success": b is seen[-1] and value == 1.0},
        )
        for a, act, b in zip(seen, actions, seen[1:], strict=False)
    )
    outcome = (
        Verdict.failed(Status.TIMEOUT, "slow")
        if value is None
        else Verdict.of(value, seen=float(len(seen)))
    )
    return Episode(
        world=world,
        instance="a1b2c3",
        split=Split.TRAIN,
        seed=seed,
        noise_seed=seed,
        policy="made",
        first=seen[0],
        transitions=steps,
        stop=Stop.TERMINATED if value is not None else Stop.WORLD_TIMEOUT,
        outcome=outcome,
    )


def grid(x, y, goal=(3, 3)):
    rows = [["_"] * 4 for _ in range(4)]
    rows[1][1] = rows[2][3] = "O"
    rows[goal[1]][goal[0]] = "G"
    rows[y][x] = "P"
    return Text("\n".join(map("".join, rows)))


TREE = """RootWebArea 'Shop'
  heading 'Lamps'
  list
    listitem
      link 'Desk lamp' {price}
      button 'Add to cart'
  status '{status}'"""


def ball(x, size=32):
    """Frames of a ball: two per observation."""
    frames = np.full((2, size, size, 3), 235, np.uint8)
    ys, xs = np.mgrid[:size, :size]
    for n in range(2):
        frames[n][(xs - x - 2 * n) ** 2 + (ys - size // 2) ** 2 < 20] = (0, 114, 178)
        frames[n][size - 4 :] = (120, 110, 100)
    return Frames.of(frames)


EPISODES = {
    "grid": (
        made(
            "frozen_lake",
            [grid(0, 0), grid(1, 0), grid(2, 0), grid(2, 1)],
            ["Right", "Right", "Down"],
        ),
        grid(1, 1),
    ),
    "text": (
        made(
            "kitchen",
            [
                Text("You are in the kitchen.\nThe lamp is off.\nYou carry: nothing"),
                Text("You are in the kitchen.\nThe lamp is on.\nYou carry: nothing"),
                Text("You are in the kitchen.\nThe lamp is on.\nYou carry: apple"),
            ],
            ["light lamp", "take apple"],
        ),
        Text("You are in the kitchen.\nThe lamp is on.\nYou carry: pear"),
    ),
    "state": (
        made(
            "counter",
            [
                State.of({"goal": 5, "value": 3}),
                State.of({"goal": 5, "value": 4}),
                State.of({"goal": 5, "value": 5, "done": True}),
            ],
            ["up", "up"],
        ),
        State.of({"goal": 6, "value": 5}),
    ),
    "tree": (
        made(
            "shop",
            [
                Tree(TREE.format(price="12 EUR", status="cart empty")),
                Tree(TREE.format(price="12 EUR", status="1 item") + "\n    link 'Checkout'"),
            ],
            ["click 'Add to cart'"],
        ),
        Tree(TREE.format(price="12 EUR", status="2 items")),
    ),
    "frames": (made("tabletop", [ball(6), ball(12), ball(18)], ["push", "push"]), ball(14)),
}
"""An episode of each kind, and a wrong prediction of what its last step shows."""


def prediction(observation, chance=0.9):
    return Prediction(
        observation=observation,
        reward=0.1,
        terminated=False,
        logprob=float(np.log(chance)),
        risk=1 - chance,
    )


def extras_of(episode, wrong):
    """Predictions that are right until the last step, and forks at every step."""
    right = Verdict.of(1.0, exact=1.0)
    predictions = [
        StepPrediction(prediction(step.next_observation), 0.04 + 0.1 * n, "trusted", right)
        for n, step in enumerate(episode.transitions)
    ]
    differs = Verdict.of(0.0, "differs", exact=0.0)
    predictions[-1] = StepPrediction(prediction(wrong, 0.4), 0.7, "too_risky", differs)
    names = sorted({step.action for step in episode.transitions} | {"wait"})
    forks = [[branch(step, name, wrong) for name in names] for step in episode.transitions]
    return Extras(predictions=predictions, forks=forks)


def branch(step, action, wrong):
    result = step.next_observation if action == step.action else step.observation
    real = (prediction(result, 1.0),)
    return CounterfactualBranch(action, real, (prediction(wrong, 0.6),), 0.3, "trusted")
