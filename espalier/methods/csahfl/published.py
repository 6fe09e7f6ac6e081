"""The figures of CSAHFL's Tables 1 to 3 (Li et al., IJCAI 2025), as printed.

Accuracies in percent (the printed ± is left out), times in the paper's seconds. NaN is a printed dash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ENIID = ("EIID", "ENIID50%", "ENIID30%")
DATASETS = ("Fashion-MNIST", "CIFAR10", "SVHN")
NEVER = float("nan")

#: Table 1: staying probability → method → accuracies, three ENIID settings of each dataset in turn
TABLE1: Mapping[float, Mapping[str, Sequence[float]]] = {
    1.0: {
        "FedAVG": (87.50, 83.26, 83.08, 48.52, 48.45, 47.74, 84.58, 83.78, 83.83),
        "FedProx": (87.93, 82.96, 80.97, 45.28, 45.28, 40.86, 85.04, 82.65, 78.65),
        "HierFedAVG": (87.43, 83.97, 81.44, 45.51, 45.57, 44.13, 85.05, 84.92, 82.90),
        "FedAT": (83.47, 82.31, 77.01, 51.22, 47.11, 37.64, 82.05, 78.82, 75.15),
        "MACFL": (88.02, 84.95, 81.65, 53.02, 49.77, 47.77, 87.77, 84.13, 81.63),
        "HiFlash": (89.12, 85.24, 81.48, 65.08, 60.58, 49.37, 88.49, 84.92, 80.59),
        "FedUC": (88.14, 83.97, 82.44, 60.98, 58.94, 54.70, 86.62, 83.79, 82.38),
        "CSAHFL": (92.14, 91.11, 88.49, 69.35, 68.06, 64.75, 90.68, 89.62, 88.17),
    },
    0.5: {
        "FedProx": (86.96, 82.27, 79.86, 45.64, 46.63, 43.32, 83.96, 82.68, 81.57),
        "HierFedAVG": (86.59, 83.80, 81.39, 44.58, 44.04, 41.88, 83.44, 81.62, 80.67),
        "MACFL": (88.44, 85.97, 83.01, 54.06, 46.02, 50.81, 86.06, 83.71, 82.79),
        "HiFlash": (87.71, 87.13, 85.09, 64.83, 63.47, 62.97, 86.92, 86.20, 83.54),
        "FedUC": (86.70, 83.36, 82.57, 60.51, 56.34, 54.85, 84.19, 82.03, 80.97),
        "CSAHFL": (92.82, 91.80, 88.27, 70.68, 68.35, 64.55, 89.72, 89.03, 88.11),
    },
}

#: Table 2: staying probability → method → times to the first and the second target, three ENIID settings in turn
TABLE2: Mapping[float, Mapping[str, Sequence[float]]] = {
    1.0: {
        "FedAVG": (823, 5043, 987, 8028, 1302, 6229),
        "FedProx": (1341, 5387, 1836, 10137, 1869, 11353),
        "HierFedAVG": (1780, 6712, 1811, 7258, 1811, 11464),
        "FedAT": (706, 10528, 718, 7134, 705, NEVER),
        "MACFL": (1632, 6465, 1796, 6912, 1751, 5787),
        "HiFlash": (1400, 2775, 1407, 4299, 1380, 3197),
        "FedUC": (718, 3493, 730, 2665, 1283, 3250),
        "CSAHFL": (724, 1392, 743, 1242, 989, 1735),
    },
    0.5: {
        "FedProx": (1776, 7619, 2296, 11068, 2091, 10776),
        "HierFedAVG": (1819, 7164, 1776, 6958, 3202, 11438),
        "MACFL": (1795, 5909, 1807, 5089, 1735, 4374),
        "HiFlash": (882, 6497, 1093, 1733, 824, 2224),
        "FedUC": (853, 5012, 1065, 3793, 912, 3612),
        "CSAHFL": (744, 1488, 991, 1240, 745, 1840),
    },
}
#: Table 2: the two targets in percent for each ENIID setting
TARGETS: Mapping[str, tuple[float, float]] = {"EIID": (60, 85), "ENIID50%": (60, 82), "ENIID30%": (60, 80)}

#: Table 3: ENIID setting → staying probability → ablation → (accuracy, target time)
TABLE3: Mapping[str, Mapping[float, Mapping[str, tuple[float, float]]]] = {
    "EIID": {
        1.0: {"w/o C": (90.12, 1432), "w/o SA": (91.53, 5210), "w/o D": (91.21, 1398)},
        0.5: {"w/o C": (89.65, 1497), "w/o SA": (91.41, 5108), "w/o D": (90.89, 1537)},
    },
    "ENIID50%": {
        1.0: {"w/o C": (86.34, 1503), "w/o SA": (88.72, 5419), "w/o D": (89.06, 1408)},
        0.5: {"w/o C": (85.92, 1607), "w/o SA": (89.03, 6238), "w/o D": (88.74, 1718)},
    },
    "ENIID30%": {
        1.0: {"w/o C": (82.20, 1545), "w/o SA": (85.17, 6193), "w/o D": (84.69, 1473)},
        0.5: {"w/o C": (81.87, 1633), "w/o SA": (81.64, 6501), "w/o D": (83.87, 1829)},
    },
}
