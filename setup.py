"""The native kernels, which pyproject.toml cannot describe; where they do not build, the package does without.

They are compiled once for every level of the architecture, never for the machine at hand, so that a wheel built here
runs elsewhere; which level is used is decided at run time (`espalier.training.native`).
"""

import platform
from pathlib import Path

from setuptools import Extension, setup

NATIVE = "espalier/training/native"
#: levels and the compiler's names for them; "baseline" is what every processor of an architecture has. What only some
#: processors of a level have (products in bfloat16) is used by functions that ask the processor first.
LEVELS = {"baseline": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    LEVELS |= {"avx2": ["-march=x86-64-v3"], "avx512": ["-march=x86-64-v4", "-mavx512bf16"]}

setup(
    ext_modules=[
        Extension(
            f"espalier.training.native._kernels_{level}",
            [f"{NATIVE}/kernels.cpp"],
            depends=sorted(str(p) for p in Path(NATIVE).glob("*.h")),
            extra_compile_args=["-std=c++17", "-O3", "-g0", *flags],
            language="c++",
            optional=True,
        )
        for level, flags in LEVELS.items()
    ]
)
