"""Vectorised environments for Stable-Baselines3, and the wrappers that show agents what they see.

It imports the ground floor, ``envs`` and ``wrappers``, NumPy and SB3. Start reading in ``make.py``,
which puts everything together, then ``gymnasium_vec_env.py`` (Gymnasium's vectors as SB3's) and
``normalize.py``; ``substitutes.py`` decides where a native vector may stand in.
"""
