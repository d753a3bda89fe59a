"""The Ray engine, against a real Ray that the test starts.

pip install -e '.[ray]' && pytest -m external tests/unit/experiment/test_ray_engine.py
"""

from __future__ import annotations

import instant_engine
import pytest
from tasks import DiesOnce

from thrust_pomdp.experiment.engines import Failed, Finished, Job, LocalEngine, Progress, Started
from thrust_pomdp.experiment.runner import Runner
from thrust_pomdp.experiment.runs import RunSpec

pytestmark = [
    pytest.mark.external,
    # Ray's own; what it leaves open it closes when the process ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExce"
                               "ptionWarning"),
]  # fmt: skip


@pytest.fixture(scope="module")
def ray_engine():
    pytest.importorskip("ray")
    from thrust_pomdp.experiment.ray_engine import RayEngine

    return RayEngine(2)


def spec(arm: str, seed: int = 0) -> RunSpec:
    return instant_engine.spec(arm, seed, evaluations=1)


def test_results_are_those_of_the_local_engine_bit_for_bit(ray_engine, tmp_path):
    specs = [spec("lstm"), spec("mlp"), spec("lstm", 1), spec("arms_of_users:failing")]
    there = Runner(specs, tmp_path / "ray", engine=ray_engine)
    here = Runner(specs, tmp_path / "local", engine=LocalEngine(2))
    found, wanted = there.run(), here.run()
    assert len(found) == 3
    for one, other in zip(found, wanted, strict=True):
        for name in ("spec", "final", "best", "deterministic", "stochastic", "curve", "recipe"):
            assert getattr(one, name) == getattr(other, name), name
        assert [(e[0], *e[2:]) for e in one.evaluations] == [
            (e[0], *e[2:]) for e in other.evaluations
        ]
    assert there.failed() == here.failed() == ["arms_of_users.failing-seed0"]
    error = (tmp_path / "ray" / "runs" / "arms_of_users.failing-seed0.error.txt").read_text()
    assert "RuntimeError: this arm cannot be made" in error
    models = [tmp_path / engine / "runs" / "lstm-seed1.safetensors" for engine in ("ray", "local")]
    assert all(model.stat().st_size > 10_000 for model in models)


def test_a_lost_workers_run_is_done_again(ray_engine, tmp_path):
    mark = tmp_path / "mark"
    events = list(ray_engine.run([DiesOnce("one", mark)]))
    assert mark.read_text() == "tried\ntried\n"
    (outcome,) = [event for event in events if isinstance(event, Finished | Failed)]
    assert outcome == Finished("one", "1", {})  # with one thread
    assert events.index(Started("one")) < events.index(outcome)


def test_progress_is_told(ray_engine):
    told = [event for event in ray_engine.run([Job(spec("lstm"))]) if event is not None]
    assert told[0] == Started("lstm-seed0")
    assert all(event.timesteps <= 2048 for event in told if isinstance(event, Progress))
    assert isinstance(told[-1], Finished)
