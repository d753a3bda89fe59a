"""Arms and recipes: who sees what, who is trained how, and what is refused with which words."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import sys

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from stable_baselines3 import A2C, PPO
from torch import nn

from thrust_pomdp import (
    AsymmetricLstmPolicy,
    RecurrentPPO,
    VecNormalizeVisible,
    VecPrivilegedInfo,
)
from thrust_pomdp.envs.cartpole import FlickeringCartPoleEnv
from thrust_pomdp.envs.registration import ENVIRONMENTS
from thrust_pomdp.experiment.arms import (
    ARMS,
    RUNNER_KEYS,
    RUNNERS_ARGUMENTS,
    check_installed,
    check_spaces,
    check_tells_state,
    find_arm,
)
from thrust_pomdp.experiment.recipe_checks import NORMALIZE_KEYS, WINDOW_STATES
from thrust_pomdp.experiment.recipe_values import (
    Linear,
    parse_dict,
    parse_schedule,
    resolve_classes,
)
from thrust_pomdp.experiment.recipes import (
    Recipe,
    matched_recipe_for,
    read_recipes,
    recipe_for,
    why_general,
)
from thrust_pomdp.experiment.runs import RunSpec
from thrust_pomdp.experiment.training import algorithm_arguments, make_model, make_training_env
from thrust_pomdp.experiment.tuning import read_space
from thrust_pomdp.experiment.vec_envs import make_evaluation_env
from thrust_pomdp.ppo import recurrent_ppo
from thrust_pomdp.recurrent import LRU
from thrust_pomdp.vec_env.previous import VecPreviousAction
from thrust_pomdp.vec_env.stacked import VecStackedFrames
from thrust_pomdp.wrappers import ExposeObservation

FLICKERING = "FlickeringCartPole-v0"
CLASSES = {
    "lstm": RecurrentPPO,
    "lstm-prev-action": RecurrentPPO,
    "lstm-privileged": RecurrentPPO,
    "lstm-prev-action-privileged": RecurrentPPO,
    "gru": RecurrentPPO,
    "gru-prev-action": RecurrentPPO,
    "gtrxl": RecurrentPPO,
    "mingru": RecurrentPPO,
    "lru": RecurrentPPO,
    "mlp": PPO,
    "mlp-prev-action": PPO,
    "state": PPO,
    "frame-stack": PPO,
    "sb3-contrib": sb3_contrib.RecurrentPPO,
}


def layers(env) -> list[type]:
    found = []
    while hasattr(env, "venv"):
        found.append(type(env))
        env = env.venv
    return found


class TestArms:
    @pytest.mark.parametrize("env_id", ["MaskedCartPole-v0", "thrust_pomdp:TMaze-v0", "Acrobot-v1"])
    @pytest.mark.parametrize(
        "arm", [name for name, arm in ARMS.items() if not (arm.privileged or arm.sees_state)]
    )
    def test_every_arm_is_made_for_every_environment_by_its_recipe(self, arm, env_id):
        one = RunSpec(arm, env_id, 0)
        model = make_model(one, make_training_env(one))
        assert type(model) is CLASSES[arm]
        assert model.n_envs == one.recipe.n_envs

    def test_who_sees_the_last_action_or_several_frames_and_in_which_order(self):
        def seen(arm: str) -> tuple[int, list[type]]:
            env = make_training_env(RunSpec(arm, FLICKERING, 0))
            return env.observation_space.shape[0], layers(env)[1:]

        assert seen("lstm") == seen("mlp") == seen("sb3-contrib") == (4, [VecNormalizeVisible])
        assert seen("lstm-prev-action") == (6, [VecPreviousAction, VecNormalizeVisible])
        assert seen("mlp-prev-action") == (6, [VecPreviousAction, VecNormalizeVisible])
        assert seen("frame-stack") == (16, [VecStackedFrames, VecNormalizeVisible])

    @pytest.mark.parametrize("env_id", ["MaskedCartPole-v0", "thrust_pomdp:" + FLICKERING])
    @pytest.mark.parametrize("arm", ["lstm-privileged", "lstm-prev-action-privileged"])
    def test_a_privileged_critic_sees_the_state_in_training_alone(self, arm, env_id):
        one = RunSpec(arm, env_id, 0)
        env = make_training_env(one)
        of_actor = [VecPreviousAction] if "prev-action" in arm else []
        assert layers(env)[1:] == [VecPrivilegedInfo, *of_actor, VecNormalizeVisible]
        model = make_model(one, env)
        assert type(model.policy) is AsymmetricLstmPolicy
        assert model.policy.critic_only == ("state",)
        assert env.observation_space["state"].shape == (4,)
        evaluation = make_evaluation_env(one, 2, 0, model.get_vec_normalize_env())
        assert evaluation.observation_space == env.observation_space["observation"]
        assert "state" not in evaluation.unwrapped.reset_infos[0]
        assert model.predict(evaluation.reset())[0].shape == (2,)

    @pytest.mark.parametrize("state_env", [None, "CartPole-v1"])
    def test_one_that_sees_the_state_sees_it_in_evaluation_too(self, state_env):
        one = RunSpec("state", FLICKERING, 0, {"flicker_prob": 0.9}, state_env=state_env)
        model = make_model(one, env := make_training_env(one))
        assert type(model) is PPO
        evaluation = make_evaluation_env(one, 2, 0, model.get_vec_normalize_env())
        for venv in (env, evaluation):
            assert venv.observation_space.shape == (4,)
            venv.reset()
            for _ in range(20):
                obs, *_, infos = venv.step(np.zeros(venv.num_envs, int))
                assert obs.any(axis=1).all()
                assert not any("blanked" in info for info in infos)

    def test_one_that_sees_the_state_is_refused_where_nothing_tells_it(self):
        with pytest.raises(ValueError, match="expose_state .--state-env names one that shows it"):
            check_tells_state(ARMS["state"], "Acrobot-v1", {})
        check_tells_state(ARMS["state"], "Acrobot-v1", {}, "CartPole-v1")

    def test_who_tells_the_state_without_being_asked_is_believed(self, monkeypatch):
        spec = EnvSpec("Telling-v0", lambda: ExposeObservation(gym.make("CartPole-v1")))
        monkeypatch.setitem(gym.registry, "Telling-v0", spec)
        for arm in ("state", "lstm-privileged"):
            check_tells_state(ARMS[arm], "Telling-v0", {})
            venv = make_training_env(RunSpec(arm, "Telling-v0", 0))
            space = venv.observation_space
            assert (space if arm == "state" else space["state"]).shape == (4,)

    @pytest.mark.parametrize("env_id", ["Pendulum-v1", "Acrobot-v1"])
    def test_a_privileged_arm_is_refused_where_nothing_tells_the_state(self, env_id):
        arm = ARMS["lstm-prev-action-privileged"]
        with pytest.raises(ValueError, match="cannot take .* it takes no argument expose_state"):
            check_tells_state(arm, env_id, {})
        check_tells_state(arm, FLICKERING, {"flicker_prob": 0.3})
        check_tells_state(ARMS["lstm"], env_id, {})  # has no use for it

    @pytest.mark.parametrize("arm", ["gru", "gru-prev-action"])
    def test_a_gru_is_trained_by_the_recipe_of_the_lstm_and_stays_one(self, arm):
        recipe = recipe_for(arm, FLICKERING)
        of_lstm = recipe_for(ARMS[arm].recipes_of, FLICKERING).as_mapping()
        kwargs = {**of_lstm["policy_kwargs"], "rnn_class": "nn.GRU"}
        assert recipe.as_mapping() == {**of_lstm, "policy_kwargs": kwargs}
        changed = recipe.with_changes(ARMS[arm], {"policy_kwargs": {"lstm_hidden_size": 8}})
        one = RunSpec(arm, FLICKERING, 0, hyperparams=changed.as_mapping())
        model = make_model(one, make_training_env(one))
        assert type(model.policy.lstm_actor) is nn.GRU
        assert "forget_bias" not in recipe_for(arm, "TMaze-v0").hyperparameters["policy_kwargs"]
        assert model.policy.lstm_actor.hidden_size == 8
        assert type(make_model(RunSpec(arm, FLICKERING, 0), make_training_env(one)).policy
                    .lstm_actor) is nn.GRU  # fmt: skip

    def test_an_arm_with_the_last_action_is_not_called_memoryless(self):
        assert [name for name, arm in ARMS.items() if "memoryless" in arm.label] == ["mlp"]

    def test_an_action_is_not_called_one_bit_where_nobody_knows_how_many_there_are(self):
        assert not any("bit" in arm.label for arm in ARMS.values())

    @pytest.mark.parametrize("arm", ARMS)
    def test_the_keys_of_a_recipe_are_the_arguments_of_the_algorithm(self, arm):
        arguments = inspect.signature(CLASSES[arm].__init__).parameters.keys()
        assert arguments - RUNNERS_ARGUMENTS - {"self", "policy"} == ARMS[arm].keys

    def test_pictures_and_dicts_get_the_policies_made_for_them(self):
        picture = spaces.Box(0, 255, (36, 36, 1), "uint8")
        for space, kind in ((picture, "Cnn"), (spaces.Dict({"a": picture}), "MultiInput")):
            from thrust_pomdp.experiment.training import _policy_name

            assert _policy_name(ARMS["lstm"], space) == f"{kind}LstmPolicy"
            assert _policy_name(ARMS["mlp"], space) == f"{kind}Policy"

    def test_an_unknown_arm_is_answered_with_near_names(self):
        with pytest.raises(ValueError, match=r"arm must be one of .* got 'lsmt': did you mean lst"):
            find_arm("lsmt")

    @pytest.mark.parametrize(
        ("arm", "observation", "action", "message"),
        [
            ("lstm", spaces.Tuple([spaces.Discrete(2)]), spaces.Discrete(2), "FlattenObservation"),
            (
                "mlp",
                spaces.Discrete(3),
                spaces.Tuple([spaces.Discrete(2)]),
                "its actions are Tuple",
            ),
            (
                "sb3-contrib",
                spaces.Discrete(3),
                spaces.MultiBinary(2),
                "its actions are MultiBinary",
            ),
            ("frame-stack", spaces.Discrete(3), spaces.Discrete(2), "only Box observations can be"),
        ],
    )
    def test_an_environment_an_arm_cannot_take_is_refused_with_the_reason(
        self, arm, observation, action, message
    ):
        with pytest.raises(
            ValueError, match=f"arm {arm} cannot take this environment: .*{message}"
        ):
            check_spaces(ARMS[arm], observation, action)

    def test_what_is_not_installed_is_told_with_the_command(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sb3_contrib", None)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ValueError, match="pip install sb3-contrib"):
            check_installed(ARMS["sb3-contrib"])


def test_what_a_network_makes_of_its_arguments_names_policy_kwargs():
    recipe = recipe_for("lstm", FLICKERING)
    changed = recipe.with_changes(
        find_arm("lstm"), {"policy_kwargs": "dict(activation_fn=nn.Linear)"}
    )
    one = RunSpec("lstm", FLICKERING, 0, hyperparams=changed.as_mapping())
    message = r"arm lstm cannot be made with policy_kwargs \{'activation_fn': 'nn.Linear'\}: Linear"
    with pytest.raises(ValueError, match=message):
        make_model(one, make_training_env(one))


class TestArmsOfUsers:
    def test_any_factory_of_an_algorithm_is_one(self):
        one = RunSpec("arms_of_users:a2c", FLICKERING, 3)
        model = make_model(one, make_training_env(one))
        assert isinstance(model, A2C)
        assert model.seed == one.training_seed
        assert one.name == "arms_of_users.a2c-seed3"

    def test_its_recipes_may_say_what_it_sees_and_what_its_factory_takes(self):
        arm = find_arm("arms_of_users:a2c")
        changes = {"previous_action": True, "frame_stack": 2, "n_steps": 7, "gamma": "0.5"}
        recipe = recipe_for(arm.name, FLICKERING).with_changes(arm, changes)
        one = RunSpec(arm.name, FLICKERING, 0, hyperparams=recipe.as_mapping())
        model = make_model(one, make_training_env(one))
        assert (model.n_steps, model.gamma) == (7, 0.5)
        assert model.observation_space.shape == (12,)

    def test_what_its_factory_does_not_take_is_refused(self):
        arm = find_arm("arms_of_users:dqn")
        with pytest.raises(ValueError, match="arms_of_users:dqn takes no 'gamma' in a recipe"):
            recipe_for(arm.name, FLICKERING).with_changes(arm, {"gamma": 0.9})

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("no_such_module:make", "No module named 'no_such_module'"),
            ("arms_of_users:make", "has no attribute 'make'"),
            ("math:pi", "must be a factory of an SB3 algorithm, got 3.14"),
        ],
    )
    def test_what_is_none_is_refused_before_anything_is_trained(self, name, message):
        with pytest.raises(ValueError, match=message):
            check_installed(find_arm(name))

    def test_a_factory_that_returns_no_algorithm_is_named(self):
        one = RunSpec("arms_of_users:nothing", FLICKERING, 0)
        with pytest.raises(ValueError, match="arms_of_users:nothing must return an SB3 algorithm"):
            make_model(one, make_training_env(one))


SINGLE = "thrust_pomdp.envs.cartpole:FlickeringCartPoleEnv"

#: What a program may register under our id, to gym.register.
ANEW = {
    "another limit": {"entry_point": SINGLE, "max_episode_steps": 50},
    "other arguments": {
        "entry_point": SINGLE, "max_episode_steps": 500, "kwargs": {"flicker_prob": 0.9}},
    "another class": {
        "entry_point": "gymnasium.envs.classic_control:PendulumEnv", "max_episode_steps": 500},
    "a wrapper": {
        "entry_point": SINGLE, "max_episode_steps": 500, "kwargs": {"flicker_prob": 0.5},
        "additional_wrappers": (WrapperSpec("W", "m:W", {}),)},
}  # fmt: skip


class TestRecipesOfOtherTasksOfTheSameName:
    @pytest.fixture(params=ANEW)
    def anew(self, request, monkeypatch):
        spec = EnvSpec(FLICKERING, **ANEW[request.param])
        monkeypatch.setitem(gym.registry, FLICKERING, spec)

    @pytest.mark.usefixtures("anew")
    @pytest.mark.parametrize("arm", [*ARMS, "arms_of_users:a2c"])
    @pytest.mark.parametrize("of", [recipe_for, matched_recipe_for])
    def test_are_the_general_ones(self, arm, of):
        assert of(arm, FLICKERING) == of(arm, "Pendulum-v1") == of(arm, f"gymnasium:{FLICKERING}")
        assert FLICKERING in str(why_general(FLICKERING))

    @pytest.mark.parametrize("arm", ARMS)
    def test_are_the_tuned_ones_for_our_task_wherever_it_is_named(self, arm):
        tuned = recipe_for(arm, FLICKERING)
        assert tuned != recipe_for(arm, "Pendulum-v1")
        for module in ("thrust_pomdp", "gymnasium"):
            assert recipe_for(arm, f"{module}:{FLICKERING}") == tuned

    def test_are_the_general_ones_where_a_module_registers_something_else(
        self, tmp_path, monkeypatch
    ):
        (tmp_path / "their_tasks.py").write_text(
            "import gymnasium as gym, thrust_pomdp\n"
            f"theirs = gym.envs.registration.EnvSpec('{FLICKERING}', 'm:PendulumEnv')\n"
            f"gym.registry['{FLICKERING}'] = theirs\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setitem(gym.registry, FLICKERING, gym.spec(FLICKERING))
        assert recipe_for("lstm", f"their_tasks:{FLICKERING}") == recipe_for("lstm", "Pendulum-v1")
        assert "PendulumEnv" in str(why_general(f"their_tasks:{FLICKERING}"))
        assert "no_such_module" in str(why_general(f"no_such_module:{FLICKERING}"))

    @pytest.mark.parametrize(
        ("env_id", "cls"), [(FLICKERING, FlickeringCartPoleEnv), ("CartPole-v1", CartPoleEnv)]
    )
    def test_are_the_general_ones_where_the_class_was_changed(self, monkeypatch, env_id, cls):
        assert why_general(env_id) is None
        plain = cls.step
        monkeypatch.setattr(cls, "step", lambda self, action: plain(self, 1 - action))
        assert why_general(env_id) == f"{cls.__name__}.step was replaced"
        assert recipe_for("lstm", env_id) == recipe_for("lstm", "Pendulum-v1")

    @pytest.mark.usefixtures("anew")
    def test_of_a_users_file_are_the_users(self, tmp_path):
        path = tmp_path / "mine.yml"
        path.write_text(
            f"lstm: {{{FLICKERING}: {{n_timesteps: 7}}, 'm:{FLICKERING}': {{n_timesteps: 8}}}}"
        )
        for env_id, budget in ((FLICKERING, 7), (f"m:{FLICKERING}", 8), (f"n:{FLICKERING}", 7)):
            assert read_recipes(path, ["lstm"], env_id)["lstm"].n_timesteps == budget


class TestRecipes:
    @pytest.mark.parametrize("arm", ARMS)
    @pytest.mark.parametrize("env_id", [*ENVIRONMENTS, "CartPole-v1", "SomeoneElses-v0"])
    def test_every_arm_has_a_tuned_and_a_matched_one_for_every_environment(self, arm, env_id):
        for recipe in (recipe_for(arm, env_id), matched_recipe_for(arm, env_id)):
            assert recipe.n_timesteps >= 50_000
            algorithm_arguments(recipe)

    def test_a_prefix_does_not_hide_the_recipe(self):
        prefixed = recipe_for("lstm", "thrust_pomdp:MaskedCartPole-v0")
        assert prefixed == recipe_for("lstm", "MaskedCartPole-v0")
        assert prefixed != recipe_for("lstm", FLICKERING)

    def test_unknown_rewards_are_normalised_and_known_ones_scaled(self):
        for arm in ARMS:
            assert recipe_for(arm, "SomeoneElses-v0").normalize == {}  # VecNormalize's defaults
            assert recipe_for(arm, "SomeoneElses-v0").reward_scale == 1.0
            assert recipe_for(arm, FLICKERING).normalize == {"norm_reward": False}

    def test_a_recipe_comes_back_from_its_data(self):
        for name, arm in ARMS.items():
            recipe = recipe_for(name, FLICKERING)
            data = json.loads(json.dumps(recipe.as_mapping()))
            assert Recipe.from_data(arm, data) == recipe
            assert "hyperparameters" not in data

    def test_the_learning_rate_falls_to_its_end(self):
        one = RunSpec("lstm", "MaskedCartPole-v0", 0)
        model = make_model(one, make_training_env(one))
        assert (model.lr_schedule(1.0), model.lr_schedule(0.0)) == pytest.approx((3e-3, 1.5e-4))

    def test_changes_keep_the_rest(self):
        before = recipe_for("lstm", FLICKERING)
        after = before.with_changes(ARMS["lstm"], {"n_steps": 64, "n_timesteps": 1e3})
        assert after.n_timesteps == 1000
        assert after.hyperparameters == {**before.hyperparameters, "n_steps": 64}

    @pytest.mark.parametrize(
        ("arm", "change", "message"),
        [
            ("lstm", {"n_step": 1}, "arm lstm takes no 'n_step' in a recipe: did you mean n_steps"),
            ("mlp", {"window_state": "carry"}, "arm mlp takes no 'window_state'.* lstm.window_st"),
            ("mlp", {"seed": 1}, "'seed' is no key of a recipe: the runner gives it"),
            ("mlp", {"previous_action": True}, "what an arm sees is what it is"),
            ("lstm", {"frame_stack": 2}, "what an arm sees is what it is"),
            ("mlp", {"n_envs": 0}, "n_envs must be at least 1, got 0"),
            ("mlp", {"n_timesteps": 1.5}, "n_timesteps must be a whole number, got 1.5"),
            ("mlp", {"n_timesteps": "many"}, "n_timesteps must be a whole number, got 'many'"),
            ("mlp", {"reward_scale": 0}, "reward_scale must be positive, got 0"),
            ("lstm", {"average_last": 0}, "average_last must be above 0 and at most 1, got 0"),
            ("mlp", {"average_last": 20}, "average_last must be above 0 and at most 1, got 20"),
            ("mlp", {"average_last": "end"}, "average_last must be a number, got 'end'"),
            ("mlp", {"normalize": {"norm": 1}}, "normalize takes no 'norm': did you mean norm_obs"),
            ("mlp", {"learning_rate": "lin3"}, "learning_rate must be a number, lin_START or"),
            ("mlp", {"clip_range": True}, "clip_range must be a number"),
            ("mlp", {"policy_kwargs": 3}, "policy_kwargs must be a mapping, got 3"),
            ("mlp", {"gamma": "abc"}, r"gamma must be a number, got 'abc'"),
            ("mlp", {"gamma": 1.01}, r"gamma must lie in \[0, 1\], got 1.01"),
            ("mlp", {"gae_lambda": None}, "gae_lambda must be a number, got None"),
            ("mlp", {"n_steps": 0}, "n_steps must be at least 1, got 0"),
            ("mlp", {"n_epochs": 2.5}, "n_epochs must be a whole number, got 2.5"),
            ("lstm", {"burn_in": -1}, "burn_in must be at least 0, got -1"),
            ("lstm", {"envs_per_minibatch": "some"}, "envs_per_minibatch must be a whole number"),
            ("mlp", {"learning_rate": -1}, "learning_rate must be at least 0, got -1"),
            ("mlp", {"clip_range": "lin_0.2_-1"}, "clip_range must be at least 0, got 'lin_0.2_-"),
            ("mlp", {"ent_coef": "inf"}, "ent_coef must be finite, got inf"),
            ("mlp", {"vf_coef": -0.5}, "vf_coef must be at least 0, got -0.5"),
            ("mlp", {"max_grad_norm": 0}, "max_grad_norm must be positive, got 0"),
            ("mlp", {"use_sde": "no"}, "use_sde must be True or False, got 'no'"),
            ("lstm", {"window_state": "half"}, "window_state must be one of zero, carry, got 'ha"),
            ("mlp", {"policy": 5}, "policy must be the name of one, got 5"),
            ("mlp", {"normalize": {"gamma": "abc"}}, "gamma in normalize must be a number, got"),
            ("mlp", {"normalize": "dict(norm_obs=3)"}, "norm_obs in normalize must be True or Fa"),
        ],
    )
    def test_what_cannot_be_is_refused(self, arm, change, message):
        with pytest.raises(ValueError, match=message):
            recipe_for(arm, FLICKERING).with_changes(ARMS[arm], change)

    @pytest.mark.parametrize("arm", ARMS)
    def test_no_key_of_numbers_or_flags_takes_a_word(self, arm):
        """Whatever keys there will be: a run would tell it after the others were trained."""
        for key in ARMS[arm].recipe_keys - {"policy"}:
            with pytest.raises(ValueError, match=f"^{key}"):
                recipe_for(arm, FLICKERING).with_changes(ARMS[arm], {key: "abc"})

    @pytest.mark.parametrize("key", NORMALIZE_KEYS)
    def test_no_key_of_the_normaliser_takes_a_word(self, key):
        with pytest.raises(ValueError, match=f"{key} in normalize must be"):
            recipe_for("mlp", FLICKERING).with_changes(ARMS["mlp"], {"normalize": {key: "abc"}})

    def test_counts_may_be_written_as_rl_zoo_writes_them(self):
        changes = {"n_steps": 64.0, "batch_size": "1e2", "envs_per_minibatch": None}
        found = recipe_for("lstm", FLICKERING).with_changes(ARMS["lstm"], changes)
        assert [found.hyperparameters[key] for key in changes] == [64, 100, None]
        assert type(found.hyperparameters["n_steps"]) is int

    @pytest.mark.parametrize(
        ("spelled", "expected"),
        [("false", None), ("False", None), ("null", None), (False, None), (None, None),
         ("true", {}), (True, {}), ("{'norm_obs': True}", {"norm_obs": True})],
    )  # fmt: skip
    def test_normalize_may_be_spelled_as_yaml_or_python_does(self, spelled, expected):
        found = recipe_for("mlp", FLICKERING).with_changes(ARMS["mlp"], {"normalize": spelled})
        assert found.normalize == expected

    def test_states_of_windows_are_those_of_the_algorithm(self):
        assert tuple(WINDOW_STATES) == tuple(recurrent_ppo.WINDOW_STATES)

    def test_without_a_budget_it_is_none(self):
        with pytest.raises(ValueError, match="a recipe needs n_timesteps, that of mlp has none"):
            Recipe.from_mapping(ARMS["mlp"], {"n_steps": 3})


class TestMatchedRecipes:
    @pytest.mark.parametrize("env_id", [*ENVIRONMENTS, "SomeoneElses-v0"])
    def test_all_arms_agree_but_for_what_they_are(self, env_id):
        of_arm = [matched_recipe_for(arm, env_id).as_mapping() for arm in ARMS]
        for recipe in of_arm:
            for own in ("policy_kwargs", "previous_action", "frame_stack"):
                recipe.pop(own)
        assert all(recipe == of_arm[0] for recipe in of_arm)
        assert {"learning_rate", "n_epochs", "batch_size", "normalize"} <= of_arm[0].keys()

    def test_networks_have_layers_of_the_same_widths(self):
        def widths(arm: str) -> list[int]:
            one = RunSpec(arm, FLICKERING, 0, hyperparams=matched_recipe_for(arm, FLICKERING)
                          .as_mapping())  # fmt: skip
            policy = make_model(one, make_training_env(one)).policy
            dense = [m for m in policy.mlp_extractor.policy_net if isinstance(m, th.nn.Linear)]
            lstm = [policy.lstm_actor.hidden_size] if ARMS[arm].recurrent else []
            return lstm + [layer.out_features for layer in dense]

        assert {arm: widths(arm) for arm in ARMS} == {arm: [64, 64] for arm in ARMS}


class TestRecipeFiles:
    def read(self, tmp_path, text: str, arms=("lstm", "mlp")):
        (tmp_path / "mine.yml").write_text(text)
        return read_recipes(tmp_path / "mine.yml", arms, FLICKERING)

    def test_by_arm_and_environment_or_default(self, tmp_path):
        text = f"lstm: {{{FLICKERING}: {{n_timesteps: 7}}}}\nmlp: {{default: {{n_timesteps: 8}}}}"
        found = self.read(tmp_path, text)
        assert {arm: recipe.n_timesteps for arm, recipe in found.items()} == {"lstm": 7, "mlp": 8}

    def test_as_rl_zoo_has_them_for_every_arm(self, tmp_path):
        text = (
            f"{FLICKERING}:\n  n_timesteps: !!float 1e5\n  learning_rate: lin_1e-3\n  gamma: 5e-1"
        )
        found = self.read(tmp_path, text)
        assert found["mlp"].n_timesteps == found["lstm"].n_timesteps == 100_000
        assert found["mlp"].hyperparameters == {"learning_rate": "lin_1e-3", "gamma": 0.5}

    def test_an_arm_it_says_nothing_of_keeps_its_own(self, tmp_path):
        assert self.read(tmp_path, "lstm: {default: {n_timesteps: 7}}").keys() == {"lstm"}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: [", "mine.yml is no YAML"),
            ("- 1", "must map an arm's name"),
            ("lstm: 3", "must map an arm's name"),
            ("lstm: {default: 3}", "the recipe of lstm must be a mapping, got 3"),
            ("lstm: {Other-v0: {n_timesteps: 7}}", "has no recipe of lstm, mlp for Flickering"),
            ("lstm: {default: {n_timestep: 7}}", "mine.yml: arm lstm takes no 'n_timestep'"),
            ("!!python/object/apply:os.getcwd []", "is no YAML"),
        ],
    )
    def test_what_is_none_is_refused(self, tmp_path, text, message):
        with pytest.raises(ValueError, match=message):
            self.read(tmp_path, text)


class TestValues:
    @pytest.mark.parametrize("module", ["values", "names"])
    def test_the_examples_in_the_docstrings_run(self, module):
        result = doctest.testmod(importlib.import_module(f"thrust_pomdp.experiment.{module}"))
        assert result.attempted > 0
        assert result.failed == 0

    @pytest.mark.parametrize("text", ["latin-1", "utf-16"])
    def test_a_file_in_another_encoding_is_named(self, tmp_path, text):
        path = tmp_path / "mine.yml"
        path.write_bytes("mlp: {default: {policy: 'Grüße'}}".encode(text))
        with pytest.raises(ValueError, match=r"mine\.yml must be text in UTF-8, got "):
            read_recipes(path, ["mlp"], FLICKERING)
        with pytest.raises(ValueError, match=r"mine\.yml must be text in UTF-8, got "):
            read_space(path, ARMS["mlp"], recipe_for("mlp", FLICKERING))

    @pytest.mark.parametrize("value", ["lin", "lin_", "lin_a", "lin_1_b", "exp_1", "nan", True, []])
    def test_a_schedule_is_a_number_or_linear(self, value):
        with pytest.raises(ValueError, match="clip_range must be a number"):
            parse_schedule("clip_range", value)

    def test_a_schedule_may_rise_and_be_absent(self):
        assert parse_schedule("clip_range_vf", "lin_0.1_0.3") == Linear(0.1, 0.3)
        assert parse_schedule("clip_range_vf", None) is None

    def test_names_of_torch_become_classes(self):
        text = "dict(activation_fn=nn.ReLU, net_arch=[dict(pi=[64])], optimizer_class=th.optim.SGD)"
        data = parse_dict("policy_kwargs", text)
        assert json.loads(json.dumps(data)) == data
        assert resolve_classes(data) == {
            "activation_fn": th.nn.ReLU, "net_arch": [{"pi": [64]}],
            "optimizer_class": th.optim.SGD,
        }  # fmt: skip
        with pytest.raises(ValueError, match="torch has no class nn.ReLUU"):
            resolve_classes(["nn.ReLUU"])
        assert resolve_classes(parse_dict("policy_kwargs", "dict(rnn_class=recurrent.LRU)")) == {
            "rnn_class": LRU
        }
        with pytest.raises(ValueError, match="thrust_pomdp has no class recurrent.LRUU"):
            resolve_classes("recurrent.LRUU")

    @pytest.mark.parametrize("text", ["dict(3)", "dict(**{})", "open('x')", "dict(a=f())", "1 +"])
    def test_no_code_is_run(self, text):
        with pytest.raises(ValueError, match="policy_kwargs must be a mapping"):
            parse_dict("policy_kwargs", text)


def test_runner_keys_are_no_arguments_of_algorithms():
    for algorithm in CLASSES.values():
        arguments = inspect.signature(algorithm.__init__).parameters.keys()
        assert arguments & RUNNER_KEYS == {"policy"}
