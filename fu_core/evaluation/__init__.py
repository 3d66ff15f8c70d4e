"""Has it forgotten, does it still work, what did it cost?"""

from fu_core.evaluation import accuracy, audit, backdoor, costs, equivalence, membership

__all__ = ["accuracy", "audit", "backdoor", "costs", "equivalence", "membership"]
