"""Builds the cffi shim with the package (everything else is in pyproject.toml)."""

from setuptools import setup

setup(
    cffi_modules=["native_shim/build_shim.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel for CPython 3.11 and all later ones
)
