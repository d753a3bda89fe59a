"""Training that was killed goes on where it was, bit for bit.

It imports ``ppo`` and what is below it. Start reading in ``training_checkpoint.py``, the callback
that users give to ``learn``; ``model_state.py``, ``callback_states.py`` and ``log_files.py`` say
what is held of each part, ``arguments.py`` what must be the same for training to go on, and
``folder.py`` how that comes onto the disk and back.
"""
