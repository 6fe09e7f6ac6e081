"""The native kernels, which pyproject.toml cannot describe; where they do not build, the package does without."""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = "espalier/training/native"

setup(
    ext_modules=[
        Extension(
            "espalier.training.native._kernels",
            [f"{NATIVE}/kernels.cpp"],
            depends=sorted(str(p) for p in Path(NATIVE).glob("*.h")),
            # For the processor at hand: the library says at run time whether it fits another one.
            extra_compile_args=["-std=c++17", "-O3", "-march=native", "-g0"],
            language="c++",
            optional=True,
        )
    ]
)
