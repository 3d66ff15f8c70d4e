"""A schema's table of refusals as one test: each line has one thing changed, and what the error must say of it."""

from fu_core.errors import ConfigError


def told_otherwise(make, table):
    """The lines of `table` that `make` does not refuse in one line that says what it must: [(change, must, said)].

    make: from {parameter: value} to an experiment, or a ConfigError; table: [(change, must)].
    """
    wrong = []
    for change, must in table:
        said = _said(make, change)
        if must not in said or "\n" in said:
            wrong.append((change, must, said))
    return wrong


def _said(make, change):
    try:
        make(change)
    except ConfigError as error:
        return str(error)
    return ""  # nothing, and no line of a table is in that
