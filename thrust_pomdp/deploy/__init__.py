"""Acting with a trained model outside of training, and exporting it to where there is no torch.

It imports the ground floor, ``wrappers``, ``vec_env`` and ``ppo``. Start reading in
``stateful_actor.py``, which keeps the memory; ``observation_pipeline.py`` does to raw observations
what the training's wrappers did, ``blank_values.py`` knows what a blank looks like, and
``actor_files.py`` keeps all of it in a file.

Of exporting start with ``program.py``: ``description.py`` makes a program of an actor, and
``numpy_actor.py``, ``onnx_graph.py``, ``c_source.py`` and ``js_source.py`` do what it says.
"""
