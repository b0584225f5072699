"""A server in a process of its own, so that its memory can be watched: an untrained tiny model.

python -m tests.support.attacked_server '{"max_connections": 128}'   # prints its port
"""

import json
import sys

from tests.support.made_models import certified_model_of
from tests.support.served import LAKE, TOKEN, untrained_model

from terrella.commands.serve import listen, serve_app
from terrella.serve.app import make_app
from terrella.serve.inference import InferenceService
from terrella.serve.settings import ServeSettings


def main():
    learned = untrained_model(samples=2, turn_tokens=8, cache_limit=0)
    limits = ServeSettings.Config(**json.loads(sys.argv[1]))
    service = InferenceService(
        certified_model_of(learned), LAKE, limits, tokenizer=learned.tokenizer
    )
    listening = listen("127.0.0.1", 0)
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    serve_app(make_app(service, TOKEN), listening, limits)


if __name__ == "__main__":
    main()
