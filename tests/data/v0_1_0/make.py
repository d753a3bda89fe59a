"""Written by thrust_pomdp 0.1.0: PYTHONPATH=<its checkout> python make.py <folder>."""
import sys, pathlib, json
import numpy as np, torch as th
from gymnasium import spaces
import gymnasium as gym
import thrust_pomdp as t
from stable_baselines3.common.vec_env import DummyVecEnv
out = pathlib.Path(sys.argv[1]); out.mkdir(parents=True, exist_ok=True)
th.manual_seed(0)

class Env(gym.Env):
    def __init__(self, space, actions=spaces.Discrete(2)):
        self.observation_space, self.action_space = space, actions
        self.n = 0
    def reset(self, seed=None, options=None):
        super().reset(seed=seed); self.n = 0
        return self.observation_space.sample(), {}
    def step(self, a):
        self.n += 1
        return self.observation_space.sample(), 1.0, self.n >= 7, False, {}
    def action_masks(self):
        return [True, False]

vector = spaces.Box(-1, 1, (3,), np.float32)
small = dict(lstm_hidden_size=4, net_arch=dict(pi=[4], vf=[4]))
def save(name, cls, policy, space, actions=spaces.Discrete(2), **kw):
    env = DummyVecEnv([lambda: Env(space, actions)])
    env.seed(0); space.seed(0)
    pk = {**small, **kw.pop("policy_kwargs", {})}
    m = cls(policy, env, n_steps=8, batch_size=8, n_epochs=1, seed=0, policy_kwargs=pk, **kw)
    if name != "cnn_lstm":
        m.learn(8)
    m.save(out / f"{name}.zip")
    space.seed(1)
    obs = [space.sample() for _ in range(3)]
    obs = {k: np.stack([o[k] for o in obs]) for k in obs[0]} if isinstance(obs[0], dict) else np.stack(obs)
    if cls is t.MaskableRecurrentPPO:
        a, s = m.predict(obs, deterministic=True, action_masks=np.ones((3, 2), bool))
    else:
        a, s = m.predict(obs, deterministic=True)
    told[name] = {"actions": np.asarray(a).tolist(), "state": np.asarray(s).tolist()}
told = {}
save("mlp_lstm", t.RecurrentPPO, "MlpLstmPolicy", vector)
save("mlp_lstm_box", t.RecurrentPPO, "MlpLstmPolicy", vector, spaces.Box(-1, 1, (2,), np.float32), window_state="carry")
save("gru", t.RecurrentPPO, "MlpLstmPolicy", vector, policy_kwargs=dict(rnn_class=th.nn.GRU, net_arch=dict(encoder=[4], pi=[4], vf=[4]), layer_norm=True))
save("cnn_lstm", t.RecurrentPPO, "CnnLstmPolicy", spaces.Box(0, 255, (1, 36, 36), np.uint8), policy_kwargs=dict(features_extractor_kwargs=dict(features_dim=4)))
save("multi_input_lstm", t.RecurrentPPO, "MultiInputLstmPolicy", spaces.Dict(a=vector, b=spaces.Discrete(3)))
save("asymmetric", t.RecurrentPPO, "AsymmetricLstmPolicy", spaces.Dict(observation=vector, state=vector))
save("maskable", t.MaskableRecurrentPPO, "MlpLstmPolicy", vector)
venv = t.VecNormalizeVisible(t.make_vec_env("FlickeringCartPole-v0", 2, seed=0)); venv.reset()
for _ in range(9): venv.step(np.zeros(2, np.int64))
venv.save(str(out / "visible.pkl"))
told["visible"] = {"mean": venv.obs_rms.mean.tolist(), "count": float(venv.obs_rms.count)}
p = t.VecPrivilegedInfo(t.make_vec_env("FlickeringCartPole-v0", 2, seed=0, env_kwargs=dict(expose_state=True))); p.reset()
p.step(np.zeros(2, np.int64)); p.save_statistics(out / "privileged.pkl")
told["privileged"] = {"mean": p.statistics.mean.tolist()}
(out / "told.json").write_text(json.dumps(told, indent=1))
