"""A world model as a service: Gymnasium over HTTP, predictions with their risk, and chat.

See docs/serve.md. Importing this package registers the client with Gymnasium.
    import terrella.serve
    env = gymnasium.make("terrella/Remote-v0", url="http://127.0.0.1:8800", token=token)
"""

import gymnasium

if "terrella/Remote-v0" not in gymnasium.registry:
    gymnasium.register(id="terrella/Remote-v0", entry_point="terrella.serve.remote:RemoteEnv")
