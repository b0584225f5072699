"""The agent of the gate's experiment: a small DQN for real, gated and imagined worlds alike.

Observations are one-hot characters; many episodes are played at once, with one update per 32 steps.
It is not part of the package: any learner that plays a `gymnasium.Env` would do, and this one
learns in a minute on one core.
    net, encode = learn(make_world, steps=100_000, seed=0)
    Greedy(net, encode).act(moment)
"""

import numpy as np
import torch
from torch import nn

from terrella.core.types import Split, show_text
from terrella.world_models.imagine import ImaginedWorld

STEPS_PER_UPDATE = 32
BATCH = 256
BUFFER = 60_000
DISCOUNT = 0.95
EXPLORE_SHARE = 0.4
"""Share of the run over which exploration falls."""
SYMBOLS = "PXG√_O\n#S 01234EabAB"
"""Of the grid worlds and of the elevator; a space pads."""
RAGGED_WIDTH = 9
"""Longest line of a text whose lines differ in length (the elevator)."""


class Encoder:
    """Turns a text observation into the numbers of its characters, and those into one-hot."""

    def __init__(self, world):
        world.reset(seed=0)
        self.actions = world.actions()
        self.symbols = {symbol: number for number, symbol in enumerate(SYMBOLS)}
        lines = show_text(world.reset(seed=0)[0]).split("\n")
        widths = {len(line) for line in lines}
        self.width = widths.pop() if len(widths) == 1 else RAGGED_WIDTH
        self.cells = len(lines) * self.width
        self.size = self.cells * len(self.symbols)

    def __call__(self, observation):
        text = "".join(line.ljust(self.width) for line in show_text(observation).split("\n"))
        return np.array([self.symbols[symbol] for symbol in text], np.int64)

    def one_hot(self, observations):
        hot = torch.zeros(len(observations), self.cells, len(self.symbols))
        hot.scatter_(2, torch.as_tensor(np.asarray(observations))[:, :, None], 1.0)
        return hot.reshape(len(observations), -1)


class ReplayBuffer:
    """The last transitions, as arrays."""

    def __init__(self, cells):
        self.before = np.zeros((BUFFER, cells), np.int64)
        self.after = np.zeros((BUFFER, cells), np.int64)
        self.actions = np.zeros(BUFFER, np.int64)
        self.rewards = np.zeros(BUFFER)
        self.terminated = np.zeros(BUFFER)

    def add(self, index, before, action, after, reward, terminated):
        index %= BUFFER
        self.before[index] = before
        self.actions[index] = action
        self.after[index] = after
        self.rewards[index] = reward
        self.terminated[index] = terminated


def make_net(encode):
    return nn.Sequential(
        nn.Linear(encode.size, 192),
        nn.ReLU(),
        nn.Linear(192, 128),
        nn.ReLU(),
        nn.Linear(128, len(encode.actions)),
    )


def learn(make_world, *, steps, seed, learning_rate=5e-4, num_envs=STEPS_PER_UPDATE):
    """Double DQN; returns the network and its encoder."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    worlds = [make_world() for _ in range(num_envs)]
    encode = Encoder(worlds[0])
    net, target = make_net(encode), make_net(encode)
    target.load_state_dict(net.state_dict())
    adam = torch.optim.Adam(net.parameters(), lr=learning_rate)
    buffer = ReplayBuffer(encode.cells)
    seeds = iter(range(seed * 10_000_000, (seed + 1) * 10_000_000))

    def start(world):
        observation, _ = world.reset(seed=next(seeds), options={"split": Split.TRAIN})
        return encode(observation)

    current = np.stack([start(world) for world in worlds])
    for count in range(0, steps, num_envs):
        greedy_share = min(1.0, count / (EXPLORE_SHARE * steps)) * 0.95
        chosen = choose_actions(net, encode, current, greedy_share, rng)
        names = [encode.actions[number] for number in chosen]
        assess_together(worlds, names)
        for index, world in enumerate(worlds):
            observation, reward, terminated, truncated, _ = world.step(names[index])
            after = encode(observation)
            buffer.add(count + index, current[index], chosen[index], after, reward, terminated)
            current[index] = start(world) if terminated or truncated else after
        filled = min(BUFFER, count + num_envs)
        for _ in range(num_envs // STEPS_PER_UPDATE if filled >= 2 * BATCH else 0):
            batch = rng.integers(filled, size=BATCH)
            loss = td_loss(net, target, encode, buffer, batch)
            adam.zero_grad()
            loss.backward()
            adam.step()
        if count // num_envs % (50 * STEPS_PER_UPDATE // num_envs) == 0:
            target.load_state_dict(net.state_dict())
    return net, encode


def assess_together(worlds, actions):
    """Assess the next steps of imagined worlds in one batch; each world then finds its own."""
    if isinstance(worlds[0], ImaginedWorld):
        queries = [world.query(action) for world, action in zip(worlds, actions, strict=True)]
        worlds[0].certified_model.assess(queries)


def choose_actions(net, encode, observations, greedy_share, rng):
    with torch.inference_mode():
        best = net(encode.one_hot(observations)).argmax(1).numpy()
    size = len(observations)
    greedy = rng.random(size) < greedy_share
    return np.where(greedy, best, rng.integers(len(encode.actions), size=size))


def td_loss(net, target, encode, buffer, batch):
    """The network chooses the next action, the target network values it."""
    with torch.no_grad():
        after = encode.one_hot(buffer.after[batch])
        value = target(after).gather(1, net(after).argmax(1, keepdim=True))[:, 0]
        running = 1 - torch.as_tensor(buffer.terminated[batch])
        wanted = torch.as_tensor(buffer.rewards[batch]) + DISCOUNT * running * value
    values = net(encode.one_hot(buffer.before[batch]))
    taken = values.gather(1, torch.as_tensor(buffer.actions[batch])[:, None])[:, 0]
    return nn.functional.smooth_l1_loss(taken, wanted.float())


class Greedy:
    """The learned policy without exploration."""

    name = "learned"

    def __init__(self, net, encode):
        self.net = net
        self.encode = encode

    def act(self, moment):
        with torch.inference_mode():
            values = self.net(self.encode.one_hot(self.encode(moment.observation)[None]))
        return self.encode.actions[int(values.argmax())]
