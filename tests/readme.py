"""The README as tests read it."""

import re
from pathlib import Path

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")


def library_example():
    """The Python under "As a library", as printed there."""
    [section] = re.findall(r"^## As a library\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert blocks, "the README shows no code under `As a library`"
    return "\n".join(blocks)
