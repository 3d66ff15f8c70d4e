"""The one place that says which version this is. A test keeps it equal to pyproject.toml."""

__version__ = "0.1.0"
