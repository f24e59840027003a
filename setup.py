"""Build steps that pyproject.toml cannot say: C kernels through cffi, and the compiled form of the IDL."""

import os
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "src"))


class BuildWithInterfaces(build_py):
    def run(self) -> None:
        from syntrop.common.varlink.compile import compile_all

        compile_all(os.path.join(HERE, "src", "syntrop", "interfaces"))
        super().run()


setup(
    cffi_modules=[
        "src/syntrop/runtimed/kernels/build.py:ffi",
        "src/syntrop/toold/sandbox/build.py:ffi",
    ],
    cmdclass={"build_py": BuildWithInterfaces},
)
