"""The version, for those who must not import the whole package for it."""

__version__ = "0.1.0"
