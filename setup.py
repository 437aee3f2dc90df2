"""Builds the cffi shim with the package (everything else is in pyproject.toml)."""

from setuptools import setup

setup(cffi_modules=["native_shim/build_shim.py:ffibuilder"])
