"""A run that is killed on its way, as tests of all papers need it."""

import pytest

from fu_papers.lab.context import RunContext


def interrupt(run, after):
    """Call `run()`, which dies as soon as it has kept `after` checkpoints."""
    checkpoint, kept = RunContext.checkpoint, []

    def dies(self, *args):
        checkpoint(self, *args)
        kept.append(args)
        if len(kept) == after:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunContext, "checkpoint", dies)
        with pytest.raises(KeyboardInterrupt):
            run()
