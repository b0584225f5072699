"""The agent of the gate's experiment: a small DQN, the same in the real, the gated and the imagined world.

Observations are one-hot characters; many episodes go on side by side, one update for each 32 steps. It is no part of
the package: any learner that plays a `gymnasium.Env` would do, and this one learns in a minute on one core.
    net, encode = learn(make_world, steps=100_000, seed=0); Greedy(net, encode).act(moment)
"""

import numpy as np
import torch
from torch import nn

from terrella.core.types import Split, show_text
from terrella.use.imagine import ImaginedWorld

STEPS_AN_UPDATE, BATCH, KEEP, DISCOUNT = 32, 256, 60_000, 0.95


class Encoder:
    def __init__(self, world):
        world.reset(seed=0)
        self.names = world.actions()
        self.symbols = {symbol: n for n, symbol in enumerate("PXG√_O\n#S")}
        self.cells = len(show_text(world.reset(seed=0)[0]).replace("\n", ""))
        self.size = self.cells * len(self.symbols)

    def __call__(self, observation):
        numbers = [self.symbols[c] for c in show_text(observation) if c != "\n"]
        return np.array(numbers, np.int64)

    def one_hot(self, rows):
        hot = torch.zeros(len(rows), self.cells, len(self.symbols))
        hot.scatter_(2, torch.as_tensor(np.asarray(rows))[:, :, None], 1.0)
        return hot.reshape(len(rows), -1)


def ask(worlds, actions):
    """All next steps of imagined worlds in one batch: each world then finds its answer kept."""
    if isinstance(worlds[0], ImaginedWorld):
        questions = [world.question(action) for world, action in zip(worlds, actions, strict=True)]
        worlds[0].imagination.assessor.assess(questions)


def learn(make, *, steps, seed, learning_rate=5e-4, say=lambda *_: None, side_by_side=STEPS_AN_UPDATE):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    worlds = [make() for _ in range(side_by_side)]
    encode = Encoder(worlds[0])
    actions = len(encode.names)
    net, target = (nn.Sequential(nn.Linear(encode.size, 192), nn.ReLU(), nn.Linear(192, 128), nn.ReLU(),
                                 nn.Linear(128, actions)) for _ in range(2))  # fmt: skip
    target.load_state_dict(net.state_dict())
    adam = torch.optim.Adam(net.parameters(), lr=learning_rate)
    seen = np.zeros((KEEP, encode.cells), np.int64)
    after, done, acted, earned = np.zeros_like(seen), np.zeros(KEEP), np.zeros(KEEP, np.int64), np.zeros(KEEP)
    numbers = iter(range(seed * 10_000_000, (seed + 1) * 10_000_000))
    now = np.stack([encode(world.reset(seed=next(numbers), options={"split": Split.TRAIN})[0]) for world in worlds])
    for count in range(0, steps, side_by_side):
        greed = min(1.0, count / (0.4 * steps)) * 0.95
        with torch.inference_mode():
            best = net(encode.one_hot(now)).argmax(1).numpy()
        chosen = np.where(rng.random(side_by_side) < greed, best, rng.integers(actions, size=side_by_side))
        ask(worlds, [encode.names[n] for n in chosen])
        for n, world in enumerate(worlds):
            observation, reward, terminated, truncated, _ = world.step(encode.names[chosen[n]])
            place = (count + n) % KEEP
            seen[place], after[place], acted[place] = now[n], encode(observation), chosen[n]
            earned[place], done[place] = reward, terminated
            if terminated or truncated:
                observation = world.reset(seed=next(numbers), options={"split": Split.TRAIN})[0]
            now[n] = encode(observation)
        filled = min(KEEP, count + side_by_side)
        for _ in range(side_by_side // STEPS_AN_UPDATE if filled >= 2 * BATCH else 0):
            some = rng.integers(filled, size=BATCH)
            with torch.no_grad():
                later = encode.one_hot(after[some])
                value = target(later).gather(1, net(later).argmax(1, keepdim=True))[:, 0]
                wanted = torch.as_tensor(earned[some]) + DISCOUNT * (1 - torch.as_tensor(done[some])) * value
            got = net(encode.one_hot(seen[some])).gather(1, torch.as_tensor(acted[some])[:, None])[:, 0]
            loss = nn.functional.smooth_l1_loss(got, wanted.float())
            adam.zero_grad()
            loss.backward()
            adam.step()
        if count // side_by_side % (50 * STEPS_AN_UPDATE // side_by_side) == 0:
            target.load_state_dict(net.state_dict())
            say(count, net, encode)
    return net, encode


class Greedy:
    name = "learned"

    def __init__(self, net, encode):
        self.net, self.encode = net, encode

    def act(self, moment):
        with torch.inference_mode():
            values = self.net(self.encode.one_hot(self.encode(moment.observation)[None]))
        return self.encode.names[int(values.argmax())]
