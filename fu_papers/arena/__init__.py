"""The arena: every method of the four papers and their rivals in one federation, before the strongest judges.

from fu_papers.arena import compare
frame = compare(federation, ["client-7"])            a federation of one's own: data, net and rounds are its own
"""

from fu_core import lazy

__getattr__ = lazy.parts(__name__, (), {"compare": "fu_papers.arena.own"})
__all__ = ["compare"]
