"""The same digits of LSTMs and categorical actions whatever processor loops are compiled for.

Twenty updates in a process of its own for each setting. Settings that this machine's processor
cannot run are skipped by name. Torch's own first weights are the limit: they come from LAPACK and
from its normal numbers, which differ where ``ATEN_CPU_CAPABILITY=default`` or MKL is told to use
other instructions. With weights that are given, all settings agree.
"""

from __future__ import annotations

import os
import subprocess
import sys

import llvmlite.binding as llvm
import pytest

from thrust_pomdp.recurrent.compiled import load_kernels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(load_kernels() is None, reason="Numba is missing or switched off"),
]

PROGRAM = """
import hashlib, sys
import numpy as np, torch as th
from thrust_pomdp import RecurrentPPO, make_vec_env

th.set_num_threads(1)
for kwargs in (
    {"shared_lstm_critic_gradient": True, "net_arch": []},
    {"net_arch": [32]},
):
    env = make_vec_env("FlickeringCartPole-v0", 8, seed=0, normalize=True)
    model = RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=64, batch_size=256, n_epochs=2, seed=0, learning_rate=1e-3,
        policy_kwargs={"lstm_hidden_size": 32, **kwargs},
    )
    paths = model.fast_paths()
    assert paths["compiled minibatch"] == paths["compiled step"] == "used", paths
    if sys.argv[1] == "given":
        rng = np.random.default_rng(0)
        with th.no_grad():
            for p in model.policy.parameters():
                p.copy_(th.from_numpy(rng.uniform(-0.2, 0.2, p.shape).astype(np.float32)))
    model.learn(20 * 64 * 8)
    digest = hashlib.sha256()
    for p in model.policy.parameters():
        digest.update(p.detach().numpy().tobytes())
    print(digest.hexdigest())
"""

#: What LLVM may be told to compile for, and a feature of the processor that it needs.
TARGETS = {"haswell": "avx2", "skylake-avx512": "avx512vl", "znver3": "avx2"}
AVX512 = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"

#: Of torch and NumPy, with torch's own first weights.
LIBRARIES = [
    {"ATEN_CPU_CAPABILITY": "avx2"},
    {"ATEN_CPU_CAPABILITY": "avx512"},
    {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"NPY_DISABLE_CPU_FEATURES": AVX512},
]

#: With first weights that are given.
OTHERS = [{"ATEN_CPU_CAPABILITY": "default"}, {"MKL_CBWR": "COMPATIBLE"}]


def digests(weights: str, **settings: str) -> list[str]:
    environment = {**os.environ, **settings}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, weights]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


@pytest.fixture(scope="module")
def here() -> dict[str, list[str]]:
    return {weights: digests(weights) for weights in ("own", "given")}


@pytest.mark.parametrize("settings", LIBRARIES, ids=str)
def test_of_torchs_and_numpys_instructions(settings, here):
    assert digests("own", **settings) == here["own"]


@pytest.mark.parametrize("settings", OTHERS, ids=str)
def test_from_given_weights(settings, here):
    assert digests("given", **settings) == here["given"]


@pytest.mark.parametrize("target", TARGETS)
def test_of_what_llvm_compiles_for(target, here):
    if not llvm.get_host_cpu_features().get(TARGETS[target]):
        pytest.skip(f"{target}: this processor has no {TARGETS[target]}")
    chosen = {"NUMBA_CPU_NAME": target}
    assert digests("own", **chosen) == here["own"]
    for settings in LIBRARIES:
        assert digests("own", **chosen, **settings) == here["own"], settings
    for settings in OTHERS:
        assert digests("given", **chosen, **settings) == here["given"], settings
