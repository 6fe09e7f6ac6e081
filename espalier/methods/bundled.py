"""All methods, policies, partitions and papers' worlds that come with the package: importing this registers them."""

# ruff: noqa: F401

from espalier.methods import (
    alone,
    apfl,
    async_hfl,
    cfl,
    ditto,
    fedasync,
    fedat,
    fedavg,
    feddyn,
    fedlc,
    fednova,
    fedopt,
    fedproto,
    fedrep,
    feduc,
    flhc,
    hierfavg,
    icfl,
    ifca,
    macfl,
    moon,
    personal_layers,
    pfedme,
    qfedavg,
    scaffold,
    selective,
)
from espalier.methods.cflhkd import method as cflhkd
from espalier.methods.cflhkd import world as cflhkd_world
from espalier.methods.csahfl import method as csahfl
from espalier.methods.csahfl import world as csahfl_world
from espalier.methods.d2d import method as d2d
from espalier.methods.d2d import partition as sized
from espalier.methods.d2d import world as d2d_world
from espalier.methods.easf import method as easf
from espalier.methods.easf import world as easf_world
from espalier.methods.hiflash import method as hiflash
from espalier.methods.phefl import method as phefl
from espalier.methods.phefl import partition as layouts
from espalier.methods.phefl import world as phefl_world
from espalier.methods.trellis import method as trellis
from espalier.policies import (
    guard,
    local_policies,
    privacy,
    robust_merges,
    secure_sum,
    selections,
    server_optimizers,
)

#: modules that register the papers' studies, imported when a study is asked for
STUDIES = tuple(
    f"espalier.methods.{module}"
    for module in (
        "benchmark.study",
        "benchmark.figures",
        "cflhkd.study",
        "csahfl.study",
        "d2d.study",
        "d2d.figures",
        "easf.study",
        "phefl.study",
        "robustness.study",
        "trellis.study",
    )
)
