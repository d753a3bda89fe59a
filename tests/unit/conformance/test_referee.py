"""The referee finds what was planted, by the law that names it, and flags nothing that is sound."""

from __future__ import annotations

import random

import numpy as np
import planted_faults as faults
import pytest
import sb3_contrib
import stable_baselines3
import torch as th

import thrust_pomdp
from thrust_pomdp.conformance import check_recurrent
from thrust_pomdp.conformance.referee import LAWS
from thrust_pomdp.recurrent import MinGRU

SMALL = {"lstm_hidden_size": 8, "net_arch": [8]}


def theirs(env, **kwargs):
    return sb3_contrib.RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=dict(SMALL), **kwargs)


def ours(env, **kwargs):
    return thrust_pomdp.RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=dict(SMALL), **kwargs)


def carrying(env, **kwargs):
    return thrust_pomdp.RecurrentPPO(
        "MlpLstmPolicy", env, policy_kwargs=dict(SMALL), window_state="carry", **kwargs
    )


def burning_in(env, **kwargs):
    policy_kwargs = {**SMALL, "rnn_class": MinGRU}
    return thrust_pomdp.RecurrentPPO(
        "MlpLstmPolicy", env, policy_kwargs=policy_kwargs, sequence_length=4, burn_in=2, **kwargs
    )


def with_options(**options):
    def make(env, **kwargs):
        return thrust_pomdp.RecurrentPPO(
            "MlpLstmPolicy", env, policy_kwargs={**SMALL, **options}, **kwargs
        )

    return make


def maskable(env, **kwargs):
    return thrust_pomdp.MaskableRecurrentPPO(
        "MlpLstmPolicy", env, policy_kwargs=dict(SMALL), **kwargs
    )


def theirs_shared(env, **kwargs):
    policy_kwargs = {**SMALL, "shared_lstm": True, "enable_critic_lstm": False}
    return sb3_contrib.RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=policy_kwargs, **kwargs)


SOUND = {
    "sb3-contrib": theirs,
    "sb3-contrib, one LSTM": theirs_shared,
    "ours": ours,
    "ours, one LSTM": with_options(shared_lstm_critic_gradient=True),
    "ours, a critic without memory": with_options(enable_critic_lstm=False),
    "ours, minGRU with burn-in": burning_in,
    "ours, GRU of two layers": with_options(rnn_class=th.nn.GRU, n_lstm_layers=2),
    "ours, carrying": carrying,
    "ours, maskable": maskable,
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_keeps_every_law(name):
    report = check_recurrent(SOUND[name])
    report.raise_if_broken()
    assert [row.law for row in report.findings] == list(LAWS)
    assert report.not_observable == ()


@pytest.mark.parametrize("library", ["theirs", "ours"])
@pytest.mark.parametrize("fault", faults.PLANTED)
def test_a_planted_fault_is_found_by_the_law_that_names_it(fault, library):
    planted = faults.PLANTED[fault]
    make = {"theirs": theirs, "ours": carrying}[library]
    report = check_recurrent(faults.planted_in(make, planted, library), only=[planted.law])
    assert report.broken == (planted.law,), report
    assert "it raises" not in report[planted.law].detail, "a plant that does not grow"


class TestWhatHasNoMemory:
    def test_is_told_so_and_judged_by_the_rest(self):
        def make(env, **kwargs):
            return stable_baselines3.PPO("MlpPolicy", env, **kwargs)

        report = check_recurrent(make)
        assert report.broken == ("memory",), report
        assert report["no leak"].detail == "it remembers nothing"
        assert report["first pass"].verdict == "held"
        with pytest.raises(AssertionError, match="breaks 1 of 15 laws"):
            report.raise_if_broken()


class TestWhatCannotBeSeen:
    def test_is_said_to_be_so(self):
        class Silent(thrust_pomdp.RecurrentPPO):
            def _log_training(self, *args):
                pass

        def make(env, **kwargs):
            return Silent("MlpLstmPolicy", env, policy_kwargs=dict(SMALL), **kwargs)

        report = check_recurrent(make, only=["first pass", "bootstrap at truncation"])
        assert report.not_observable == ("first pass",)
        assert "train() does not log train/policy_gradient_loss" in str(report)
        assert report["bootstrap at truncation"].verdict == "held"

    def test_of_a_buffer_of_another_layout(self):
        class Reversed:
            """A buffer that is read in another layout than it is filled in."""

            def compute_returns_and_advantage(self, last_values, dones):
                super().compute_returns_and_advantage(last_values, dones)
                self.advantages = self.advantages.T

        report = check_recurrent(
            lambda env, **kwargs: faults.with_buffer(theirs(env, **kwargs), Reversed),
            only=["memory"],
        )
        assert report["memory"].detail == (
            "rollout_buffer.advantages is not [n_steps=16, n_envs=4, ...] after collecting, as "
            "SB3's is, but (4, 16)"
        )


class TestErrors:
    def test_a_law_in_which_the_algorithm_raises_is_broken(self):
        class Raises:
            def predict(self, *args, **kwargs):
                raise KeyError("nothing here")

        report = check_recurrent(
            lambda env, **kwargs: faults.with_methods(theirs(env, **kwargs), Raises),
            only=["memory at evaluation"],
        )
        assert "it raises KeyError in predict, test_referee.py, line" in str(report)

    def test_what_the_algorithm_asserts_is_no_law(self):
        class Asserts:
            def predict(self, *args, **kwargs):
                assert not kwargs

        report = check_recurrent(
            lambda env, **kwargs: faults.with_methods(theirs(env, **kwargs), Asserts),
            only=["memory at evaluation"],
        )
        assert "it raises AssertionError in predict, test_referee.py" in str(report)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"make_model": 3}, "make_model must be a function, got 3"),
            ({"make_model": lambda env, **kwargs: env}, "an algorithm of SB3's kind, with learn"),
            ({"make_model": lambda env, n_steps: env}, "must hand kwargs on .* unexpected keyword"),
            ({"make_model": ours, "only": "no leak"}, "got the text 'no leak'"),
            ({"make_model": ours, "only": ["no leek"]}, "did you mean no leak"),
        ],
    )
    def test_name_what_was_wrong(self, given, message):
        with pytest.raises(ValueError, match=message):
            check_recurrent(**given)


def test_generators_are_left_as_they_were():
    def state():
        return random.getstate(), str(np.random.get_state()), th.get_rng_state().tolist()

    before = state()
    check_recurrent(theirs, only=["determinism"])
    assert state() == before
