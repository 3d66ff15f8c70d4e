"""Exercises that answer: `check("puf-2", answer)` says right, or what is wrong; `hint` and `solution` help.

Every exercise is one file of this folder, puf_2.py say, with all of its parts: what is asked, a stub, hints, what is
tried, the mistakes that people make, a solution and a commentary. The notebooks' exercise cells are made from these
files (`python -m fu_papers.exercises`), and a test holds them together.
"""

from fu_papers.exercises.exercise import Exercise, Mistake, Page, Verdict
from fu_papers.exercises.shelf import check, exercise, exercises, hint, solution

__all__ = ["Exercise", "Mistake", "Page", "Verdict", "check", "exercise", "exercises", "hint", "solution"]
