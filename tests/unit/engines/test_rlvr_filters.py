"""Filters, step budget and collapse alarm of the RLVR trainer."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import torch
from tests.support.tiny_run import curve, tiny_trainer

from terrella.algos.diagnostics import CollapseWatch, MaskWatch
from terrella.algos.episode_batch import wanted_groups
from terrella.algos.filters import group_spread
from terrella.core.errors import ConfigError
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import RlvrConfig
from terrella.engines.trl.collapse_alarm import CollapseAlarm
from terrella.engines.trl.step_budget import StopAtBudget
from terrella.engines.trl.trainer_progress import ShowProgress
from terrella.show.progress import PlainProgress


def test_filters_leave_groups_out():
    rewards = torch.tensor(
        [[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.5, 0.4, 0.5, 0.5]]
    )
    for settings, groups in (
        ({}, [0, 1, 2, 3]),
        ({"keep_share": 0.25}, [0]),
        ({"keep_top_p": 0.9}, [0, 1]),
    ):
        wanted = wanted_groups(group_spread(rewards), RlvrConfig(**settings))
        assert wanted.nonzero().flatten().tolist() == groups


def test_only_the_most_uncertain_groups_are_trained_on(tmp_path: Path):
    trainer = tiny_trainer(tmp_path, steps=1, keep_share=0.25)
    trainer.train()
    # One of four groups of four.
    assert trainer.batch is not None and trainer.batch.counts.episodes == 4
    ((spread, diversity),) = curve(trainer, "in_group_std", "diversity")
    assert spread > 0 and 0 < diversity <= 1


def test_the_worlds_tokens_are_fitted_only_with_a_world_loss(tmp_path: Path):
    losses = []
    for weight in (0.0, 1.0):
        trainer = tiny_trainer(tmp_path / str(weight), steps=1, world_loss=weight)
        trainer.train()
        losses.append(trainer.state.log_history[0]["loss"])
        shares = [pack.columns["world"].sum() for pack in trainer.batch.packs if weight]
        assert sum(shares) == pytest.approx(weight)
    # The second is the cross-entropy of an untrained model.
    assert abs(losses[0]) < 1e-3 and losses[1] > 1.0
    with pytest.raises(ConfigError, match="world_loss"):
        RlvrConfig(world_loss=1.0, algorithm="ppo").check(processes=1)


def test_a_budget_ends_training_and_survives_a_resume():
    spent = [0]
    control, state = SimpleNamespace(should_training_stop=False), SimpleNamespace(log_history=[{}])
    budget = StopAtBudget(EnvStepBudget(limit=100, spent=30), lambda: spent[0])
    for taken in (40, 71):
        spent[0] = taken
        budget.on_step_end(None, state, control)
        budget.on_log(None, state, control)
        assert control.should_training_stop == (taken == 71)
    resumed = StopAtBudget(EnvStepBudget(limit=200, spent=30), lambda: 9)
    resumed.on_train_begin(None, state, control)
    resumed.on_step_end(None, state, control)
    assert resumed.budget.total == 101 + 9


def test_a_run_that_a_budget_ends_is_measured_by_it(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "terrella")
    state = SimpleNamespace(log_history=[], global_step=3, max_steps=2000)
    for limit, line in ((100, "rl, env steps  50 of 100 (50%)"), (0, "rl  3 of 2,000 (0%)")):
        budget = EnvStepBudget(limit=limit, spent=30, played=20)
        display = ShowProgress(PlainProgress(), "rl", budget)
        display.on_train_begin(None, state, None)
        assert caplog.records[-1].getMessage().startswith(line)


def test_an_update_that_is_not_logged_is_shown_with_the_last_loss():
    shown = []
    screen = SimpleNamespace(advance=lambda done, **metrics: shown.append((done, metrics)))
    display, args = ShowProgress(screen, "fit"), SimpleNamespace(logging_steps=2)
    for step in (1, 2, 3):
        state = SimpleNamespace(global_step=step, max_steps=3)
        display.on_step_end(args, state, None)
        if step % args.logging_steps == 0:
            display.on_log(args, state, None, logs={"loss": 0.5})
    assert shown == [(1, {}), (2, {"loss": 0.5}), (3, {"loss": 0.5})]


def test_the_alarm_warns_once(caplog: pytest.LogCaptureFixture):
    alarm = CollapseAlarm(CollapseWatch(first=2, patience=2))
    state = SimpleNamespace(global_step=7)
    for value in (0.4, 0.4, 0.01, 0.01, 0.01):
        alarm.on_log(
            None, state, None, logs={"in_group_std": value, "entropy": 1.0, "zero_variance": 0.2}
        )
    alarm.on_log(None, state, None, logs={"train_runtime": 1.0})
    assert len(caplog.records) == 1 and "collapsing: in_group_std is 0.01" in caplog.text


def test_the_alarm_names_a_rise_of_masked_verdicts_once(caplog: pytest.LogCaptureFixture):
    alarm = CollapseAlarm(mask_watch=MaskWatch(first=2, patience=2))
    state = SimpleNamespace(global_step=7)
    for share in (0.0, 0.0, 0.5, 0.5, 0.5):
        logs = {"masked": share, "masked/env_error": share}
        alarm.on_log(None, state, None, logs=logs)
    assert len(caplog.records) == 1 and "masked (env_error 50%)" in caplog.text
    assert alarm.masks is not None and alarm.warning is None
