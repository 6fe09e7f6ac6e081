"""All methods, policies and partitions that come with the package: importing this registers them."""

from espalier.methods import alone, cfl, fedat, fedavg, feduc, flhc, hierfavg, icfl, ifca, macfl
from espalier.methods.cflhkd import method as cflhkd
from espalier.methods.csahfl import method as csahfl
from espalier.methods.d2d import method as d2d
from espalier.methods.d2d import partition as sized
from espalier.methods.easf import method as easf
from espalier.methods.hiflash import method as hiflash
from espalier.methods.phefl import method as phefl
from espalier.methods.phefl import partition as layouts
from espalier.policies import guard, privacy, quantised, robust_merges, secure_sum

__all__ = [
    "alone", "cfl", "cflhkd", "csahfl", "d2d", "easf", "fedat", "fedavg", "feduc", "flhc", "guard", "hierfavg",
    "hiflash", "icfl", "ifca", "layouts", "macfl", "phefl", "privacy", "quantised", "robust_merges", "secure_sum",
    "sized",
]  # fmt: skip
