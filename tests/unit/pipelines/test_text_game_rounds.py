"""SFT in rounds: it stops when replies can be read, and goes on where it was killed."""

import logging

import pytest

from terrella.pipelines.text_games.rounds import fit_in_rounds


class Fitting:
    """Rounds of SFT that write a file; the fraction of unreadable replies is scripted."""

    def __init__(self, invalid):
        self.invalid = dict(enumerate(invalid))
        self.fitted = []

    def fit(self, number, start, place):
        self.fitted.append((number, start and start.name))
        place.mkdir(parents=True)
        (place / "config.json").write_text(f'{{"round": {number}}}')

    def measure(self, model):
        return self.invalid[int(model.name.partition("-")[2])]

    def run(self, folder, **limits):
        return fit_in_rounds(self.fit, self.measure, folder / "model", **limits)


def test_rounds_end_when_enough_replies_can_be_read(tmp_path):
    fitting = Fitting([0.4, 0.03, 0.0])
    assert fitting.run(tmp_path, limit=0.05, most=3) == [0.4, 0.03]
    assert fitting.fitted == [(0, None), (1, "round-0")]
    assert (tmp_path / "model" / "config.json").read_text() == '{"round": 1}'


def test_the_last_round_is_used_with_a_warning_when_none_is_enough(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "terrella"):
        assert Fitting([0.4, 0.3]).run(tmp_path, limit=0.05, most=2) == [0.4, 0.3]
    assert "30% of the replies cannot be read" in caplog.text
    assert (tmp_path / "model" / "config.json").read_text() == '{"round": 1}'


def test_a_killed_run_repeats_no_finished_round(tmp_path):
    killed = Fitting([0.4, 0.0])

    def die(number, start, place):
        if number:
            raise KeyboardInterrupt
        Fitting.fit(killed, number, start, place)

    killed.fit = die
    with pytest.raises(KeyboardInterrupt):
        killed.run(tmp_path, limit=0.05, most=3)
    again = Fitting([1.0, 0.0])  # the first round is not measured again
    assert again.run(tmp_path, limit=0.05, most=3) == [0.4, 0.0]
    assert again.fitted == [(1, "round-0")]
