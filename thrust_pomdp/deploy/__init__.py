"""Acting with a trained model outside of training.

It imports the ground floor, ``wrappers``, ``vec_env`` and ``ppo``. Start reading in
``stateful_actor.py``, which keeps the memory; ``observation_pipeline.py`` does to raw observations
what the training's wrappers did, and ``blank_looks.py`` knows what a blank looks like.
"""
