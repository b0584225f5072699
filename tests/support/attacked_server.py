"""A server in a process of its own, so that its memory can be watched: an untrained tiny model.

python -m tests.support.attacked_server '{"max_connections": 128}'   # prints its port
"""

import json
import sys

from tests.support.made_models import certified_model_of
from tests.support.served import LAKE, TOKEN

from terrella.codecs.choose import codec_for
from terrella.commands.serve import listen, serve_app
from terrella.engines.local.local_sampler import LocalSampler
from terrella.models.presets import load_model
from terrella.serve.app import make_app
from terrella.serve.inference import InferenceService
from terrella.serve.settings import ServeSettings
from terrella.world_models.language import LearnedWorldModel


def main():
    world = LAKE.build()
    world.reset(seed=0)
    model, tokenizer = load_model("tiny-0.3m", vocabulary=world.vocabulary(), seed=0)
    learned = LearnedWorldModel(
        LocalSampler(model.eval()),
        codec_for(tokenizer),
        tokenizer,
        samples=2,
        turn_tokens=8,
        cache_limit=0,
    )
    limits = ServeSettings.Config(**json.loads(sys.argv[1]))
    service = InferenceService(certified_model_of(learned), LAKE, limits, tokenizer=tokenizer)
    listening = listen("127.0.0.1", 0)
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    serve_app(make_app(service, TOKEN), listening, limits)


if __name__ == "__main__":
    main()
