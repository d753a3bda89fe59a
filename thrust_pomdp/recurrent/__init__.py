"""Memories over whole windows, with their state zeroed exactly at episode starts.

It imports the ground floor and torch; nothing here knows of policies or of SB3's algorithms. Start
reading in ``protocol.py``, which says what a memory is, then ``memory.py``, which runs a step and
windows of any kind, ``torch_layers.py`` for LSTM, GRU and plain RNN, ``sequences.py``, where
episode starts reset memory, and ``compiled_memory.py`` for the compiled loops;
``scan.py`` and ``scanned.py`` are for memories that run in parallel over time. A new kind of memory
is a subclass of :class:`Memory` in a file of its own, and passes :func:`check_memory`.
"""

from thrust_pomdp.recurrent.conformance import check_memory
from thrust_pomdp.recurrent.gtrxl import GTrXL
from thrust_pomdp.recurrent.lru import LRU
from thrust_pomdp.recurrent.min_gru import MinGRU
from thrust_pomdp.recurrent.protocol import Memory, StatePart

__all__ = ["LRU", "GTrXL", "Memory", "MinGRU", "StatePart", "check_memory"]
