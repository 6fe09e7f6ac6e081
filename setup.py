"""The native kernels, which pyproject.toml cannot describe; where they do not build, the package does without."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "espalier.training.native._kernels",
            ["espalier/training/native/kernels.cpp"],
            # For the processor at hand: the library says at run time whether it fits another one.
            extra_compile_args=["-std=c++17", "-O3", "-march=native", "-g0"],
            language="c++",
            optional=True,
        )
    ]
)
