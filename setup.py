"""Everything is in pyproject.toml; this file is for what that format cannot say."""

from setuptools import setup

setup()
