"""Commands hold the certificate to the world that they use."""

import pytest

from terrella.commands import plan, serve, view
from terrella.core.errors import ConfigError
from terrella.pipelines.collect.pipeline import Collect
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

WORLD = Counter.Config(goals=50)


def shown(folder):
    Collect(Collect.Config(world=WORLD, policy=Random.Config(), out=folder, episodes=2)).run(
        SilentProgress()
    )
    return view.View(view.View.Config(run=folder, model=folder)).certified_model


USES = {
    plan: lambda folder: plan.Plan(plan.Plan.Config(world=WORLD, folder=folder)).run(),
    serve: lambda folder: serve.Serve(serve.Serve.Config(world=WORLD, folder=folder)).app("token"),
    view: shown,
}


@pytest.mark.parametrize("command", USES, ids=lambda command: command.__name__)
def test_the_certificate_is_read_for_the_world_of_the_command(command, tmp_path, monkeypatch):
    def load(folder, samples, world, **_):
        raise ConfigError("certificate", f"is asked for {world}")

    monkeypatch.setattr(command, "load_certified_model", load)
    with pytest.raises(ConfigError) as caught:
        USES[command](tmp_path)
    assert caught.value.what == f"is asked for {WORLD}"
