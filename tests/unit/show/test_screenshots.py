"""Screenshots of recorded pages come from a replay, and only from one that shows the same."""

from dataclasses import replace

from terrella.core.episode import play
from terrella.policies.basic import Random
from terrella.show.counterfactuals import EpisodeAnalyzer
from terrella.worlds.frozen_lake import FrozenLake


class PicturedLake(FrozenLake):
    """A lake whose screenshot is its board."""

    def screenshot(self):
        return self.view.show(self.state).text.encode()


def test_a_picture_of_the_beginning_and_one_after_each_step():
    episode = play(FrozenLake.Config().build(), Random.Config().build(), seed=3)
    shown = [episode.first, *(step.next_observation for step in episode.transitions)]
    analyzer = EpisodeAnalyzer(PicturedLake.Config())
    assert [picture.decode() for picture in analyzer.screenshots(episode)] == [
        observation.text for observation in shown
    ]
    other = replace(episode.transitions[0], next_observation=replace(episode.first, text="else"))
    changed = replace(episode, transitions=(other, *episode.transitions[1:]))
    assert len(analyzer.screenshots(changed)) == 1  # the replay shows another page: no more
    assert EpisodeAnalyzer(FrozenLake.Config()).screenshots(episode) == []
