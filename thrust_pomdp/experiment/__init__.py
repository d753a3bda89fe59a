"""Train contestants on identical streams, evaluate them alike, and say whether memory pays.

It imports everything below, and filelock, Jinja2, Matplotlib, PyYAML and tqdm where they are
used. Start reading in ``training.py`` (one run), then ``arms.py``, where a contestant is added, and
``runner.py``.
"""
