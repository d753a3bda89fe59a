"""Referees that others can run: whether a memory, or a recurrent algorithm, does what it should.

It imports the ground floor and ``recurrent``, torch and SB3, and knows none of the algorithms that
it judges. Start reading in ``referee.py`` (:func:`check_recurrent`). ``laws.py``,
``training_laws.py`` and ``use_laws.py`` say what is asked, ``trial.py`` of which trainings,
``observed.py`` how the inside of a training is seen from outside, and ``probe.py`` what the
environments show.
"""

from thrust_pomdp.conformance.referee import check_recurrent
from thrust_pomdp.conformance.report import Finding, Report
from thrust_pomdp.recurrent.conformance import check_memory

__all__ = ["Finding", "Report", "check_memory", "check_recurrent"]
