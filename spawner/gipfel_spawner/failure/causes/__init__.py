"""Why a server did not start: the catalogue of causes, each with what helps.

A new entry is a `Cause` in the file of its subject and a captured log in ``tests/spawner/data/logs``.
"""

from .catalogue import CATALOGUE, explain
from .cause import Cause, Evidence, Explanation

__all__ = ["CATALOGUE", "Cause", "Evidence", "Explanation", "explain"]
