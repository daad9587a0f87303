__version__ = "0.1.0"
"""As in ``pyproject.toml``."""
