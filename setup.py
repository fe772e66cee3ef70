"""For `python setup.py build_ext --inplace`; the metadata is in pyproject.toml."""

from setuptools import setup

setup()
