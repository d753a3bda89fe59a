"""Recurrent layers over whole windows, with their state zeroed exactly at episode starts.

It imports the ground floor and torch; nothing here knows of policies or of SB3's algorithms. Start
reading in ``memory.py``, which has the layer's step and its windows, then ``sequences.py``, where
episode starts reset memory, and ``compiled_memory.py`` for the compiled loops; a new kind of memory
is added in ``memory.py``.
"""
