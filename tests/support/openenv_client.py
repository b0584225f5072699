"""OpenEnv's own client plays an episode; run by any Python that has `openenv`. Prints what it saw as JSON.

python openenv_client.py URL TOKEN SEED SPLIT ACTION
"""

import json
import sys

from openenv.core import GenericEnvClient

url, token, seed, split, action = sys.argv[1:]
with GenericEnvClient(base_url=url, headers={"Authorization": f"Bearer {token}"}) as env:
    seen = [env.reset(seed=int(seed), split=split)]
    while not seen[-1].done:
        seen.append(env.step({"action": action}))
    state = env.state()
rows = [{"text": r.observation["text"], "reward": r.reward, "metadata": r.metadata} for r in seen]
sys.stdout.write(json.dumps({"seen": rows, "state": state}))
