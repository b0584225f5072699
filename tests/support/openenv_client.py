"""Plays an episode with OpenEnv's own client, and prints it as JSON. Needs `openenv` only.

python openenv_client.py URL TOKEN SEED SPLIT ACTION
"""

import json
import sys

from openenv.core import GenericEnvClient

url, token, seed, split, action = sys.argv[1:]
with GenericEnvClient(base_url=url, headers={"Authorization": f"Bearer {token}"}) as env:
    results = [env.reset(seed=int(seed), split=split)]
    while not results[-1].done:
        results.append(env.step({"action": action}))
    state = env.state()
steps = [
    {"text": result.observation["text"], "reward": result.reward, "metadata": result.metadata}
    for result in results
]
sys.stdout.write(json.dumps({"seen": steps, "state": state}))
