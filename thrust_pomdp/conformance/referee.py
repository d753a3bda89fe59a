"""Whether a recurrent algorithm of SB3's kind keeps the laws that recurrent PPO rests on."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Collection
from pathlib import Path

from thrust_pomdp.conformance import laws, training_laws, use_laws
from thrust_pomdp.conformance.observed import generators_kept
from thrust_pomdp.conformance.report import (
    BROKEN,
    HELD,
    NOT_OBSERVABLE,
    Finding,
    NotObservableError,
    Report,
)
from thrust_pomdp.conformance.trial import MakeModel, Trial
from thrust_pomdp.errors import ArgumentError, with_near_names
from thrust_pomdp.recurrent.conformance import place_of
from thrust_pomdp.recurrent.memory_laws import first_line

#: What is asked, by its name in the report.
LAWS: dict[str, Callable[[Trial], str | None]] = {
    "memory": laws.remembers,
    "first pass": laws.first_pass,
    "reset on terminated": laws.reset_on_terminated,
    "reset on truncated": laws.reset_on_truncated,
    "reset at the right step": laws.reset_at_the_right_step,
    "bootstrap at truncation": training_laws.bootstrap_at_truncation,
    "returns and advantages": training_laws.returns_and_advantages,
    "axis order of state": laws.axis_order_of_state,
    "axis order of batch": training_laws.axis_order_of_batch,
    "one use of each step": training_laws.one_use,
    "no leak": laws.no_leak,
    "from window to window": laws.from_window_to_window,
    "memory at evaluation": use_laws.memory_at_evaluation,
    "determinism": training_laws.determinism,
    "save and load": use_laws.save_and_load,
}


def check_recurrent(make_model: MakeModel, *, only: Collection[str] | None = None) -> Report:
    """Report whether a recurrent algorithm keeps the laws that recurrent PPO rests on.

    The algorithm runs as it is, on small environments whose observations say which episode and
    step they belong to and whose episodes end where that was planned. What it does is seen by SB3's
    public means: callbacks, ``rollout_buffer``, ``train()``, the log, ``predict``, ``save``,
    ``load``. Nothing of it is replaced or wrapped.

    >>> from thrust_pomdp import RecurrentPPO
    >>> def make_model(env, **kwargs):
    ...     policy_kwargs = {"lstm_hidden_size": 8}
    ...     return RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=policy_kwargs, **kwargs)
    >>> print(check_recurrent(make_model, only=["reset on truncated", "one use of each step"]))
    thrust_pomdp.RecurrentPPO: 2 held
    - reset on truncated: held
    - one use of each step: held: 8 minibatches of 8 steps

    :param make_model: ``make_model(env, **kwargs)`` returns the algorithm with a recurrent policy
        for vector observations and two discrete actions. ``env`` is a ``VecEnv``; ``kwargs``
        are arguments of SB3's ``PPO``, to be handed on (``learning_rate``, ``n_steps``,
        ``batch_size``, ``n_epochs``, ``gamma``, ``gae_lambda``, ``clip_range``, ``clip_range_vf``,
        ``normalize_advantage``, ``ent_coef``, ``vf_coef``, ``max_grad_norm``, ``seed``)
    :param only: names of laws to look at; all when None
    :return: for each law whether it held, is broken, or could not be observed, and why.
        :meth:`~thrust_pomdp.conformance.Report.raise_if_broken` is for tests
    :raises ValueError: if ``make_model`` makes no algorithm of SB3's kind, or for unknown laws
    """
    if not callable(make_model):
        raise ArgumentError(f"make_model must be a function, got {make_model!r}")
    with generators_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are of sizes that the user did not choose
        trial = Trial(make_model)
        names = _asked(only)
        name = trial.name()
        return Report(name, tuple(_judge(law, trial) for law in names))


def _asked(only: Collection[str] | None) -> list[str]:
    if only is None:
        return list(LAWS)
    if isinstance(only, str):
        raise ArgumentError(f"only must be a list of laws, got the text {only!r}")
    for law in only:
        if law not in LAWS:
            raise ArgumentError(
                with_near_names(f"only must hold names of laws, {list(LAWS)}; {law!r}", law, LAWS)
            )
    return [law for law in LAWS if law in set(only)]


def _judge(law: str, trial: Trial) -> Finding:
    try:
        return Finding(law, HELD, LAWS[law](trial) or "")
    except NotObservableError as error:
        return Finding(law, NOT_OBSERVABLE, str(error))
    except AssertionError as error:
        # Libraries assert as well.
        raised = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        is_a_law = raised.parent == Path(__file__).parent
        return Finding(law, BROKEN, str(error) if is_a_law else _raised(error))
    except Exception as error:
        return Finding(law, BROKEN, _raised(error))


def _raised(error: Exception) -> str:
    return f"it raises {type(error).__name__}{place_of(error)}: {first_line(error)}"
