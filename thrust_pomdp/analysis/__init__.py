"""Looking inside a trained memory: what it holds, expects and would do, step by step.

It imports the ground floor, ``vec_env``, ``recurrent`` and ``ppo``. Start reading in ``trace.py``
(``look_inside``); ``trace_figure.py`` draws it.
"""
