"""CFLHKD's published figures.

Columns are datasets. Table 1 and 8: accuracy (mIoU on Cityscapes) in percent, "Comm" and "Time" in units that the paper
does not name. Table 7: fall of the accuracy in points, rounds until it was back (NaN: never, or no figure).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

DATASETS = ("MNIST", "CIFAR-10", "FEMNIST", "HAM10000", "Cityscapes")
NAN = float("nan")

Rows = Mapping[str, Sequence[tuple[float, ...]]]

TABLE1: Rows = {
    "Standalone": ((92.3, NAN, 1.8), (68.1, NAN, NAN), (84.7, NAN, 3.6), (62.5, NAN, NAN), (61.3, NAN, NAN)),
    "FedAvg": ((95.1, 48.0, 3.2), (76.8, 448.0, 8.5), (89.2, 148.0, 5.1), (67.3, 280, 6.8), (66.5, 448.0, 22.1)),
    "FedProx": ((95.7, 43.2, 3.1), (77.4, 403.2, 8.3), (89.8, 133.2, 5.0), (69.1, 252.0, 6.7), (68.4, 403.2, 21.8)),
    "HierFAVG": ((95.9, 28.8, 2.9), (78.2, 268.8, 7.9), (90.1, 88.8, 4.8), (69.8, 168.0, 6.4), (67.1, 268.8, 19.7)),
    "FL+HC": ((96.2, 24.0, 2.7), (78.9, 224.0, 7.5), (91.3, 74.0, 4.5), (70.5, 140.0, 6.1), (70.2, 224.0, 18.9)),
    "CFL": ((96.5, 19.2, 2.5), (79.3, 179.2, 7.2), (91.7, 59.2, 4.3), (71.2, 112.0, 5.8), (70.2, 179.2, 17.2)),
    "ICFL": ((96.8, 14.4, 2.4), (80.1, 134.4, 7.0), (92.0, 44.4, 4.1), (72.1, 84.0, 5.6), (71.6, 134.4, 16.5)),
    "IFCA": ((97.0, 12.0, 2.3), (80.5, 112.0, 6.8), (92.4, 37.0, 3.9), (72.8, 70.0, 5.4), (72.1, 112.0, 15.8)),
    "CFLHKD": ((97.6, 9.6, 2.1), (82.3, 89.6, 6.3), (93.5, 26.6, 3.5), (78.9, 56.0, 5.0), (74.8, 89.6, 14.4)),
}
TABLE7: Rows = {
    "Standalone": ((14.2, NAN), (20.1, NAN), (18.5, NAN), (19.8, NAN), (12.3, NAN)),
    "FedAvg": ((12.5, 15), (18.3, NAN), (16.7, 20), (15.8, 20), (9.5, NAN)),
    "FedProx": ((11.8, 12), (17.2, 18), (15.3, 18), (14.1, 16), (8.9, 10)),
    "HierFAVG": ((10.5, 10), (15.6, 15), (14.1, 15), (13.2, 14), (7.8, 8)),
    "FL+HC": ((9.8, 8), (14.3, 12), (13.5, 12), (12.4, 12), (6.7, 6)),
    "CFL": ((8.7, 7), (13.1, 10), (12.8, 10), (11.5, 10), (6.2, 5)),
    "ICFL": ((7.9, 6), (12.7, 9), (11.2, 8), (10.5, 8), (5.9, 4)),
    "IFCA": ((8.2, 6), (12.7, 8), (10.9, 7), (10.5, 7), (6.4, 4)),
    "CFLHKD": ((2.1, 2), (4.8, 3), (3.5, 2), (3.2, 2), (1.7, 2)),
}
#: Table 8 has no FEMNIST
TABLE8_DATASETS = ("MNIST", "CIFAR-10", "HAM10000", "Cityscapes")
TABLE8: Rows = {
    "CFLHKD": ((97.6, 9.6, 2.1), (82.3, 89.6, 6.3), (78.9, 56.0, 5.0), (74.5, 89.6, 14.4)),
    "w/o bi-level aggregation": ((96.1, 18.2, 2.8), (77.8, 174.7, 8.5), (74.5, 105.0, 6.8), (69.8, 174.7, 19.2)),
    "w/o global fine-tuning": ((97.0, 12.7, 2.4), (79.1, 123.6, 7.0), (76.8, 77.0, 5.6), (72.1, 123.6, 16.0)),
    "w/o dynamic clustering": ((97.3, 9.6, 2.2), (80.5, 89.6, 6.6), (77.7, 56.0, 5.3), (73.2, 89.6, 15.0)),
}
#: mIoU on Cityscapes
TABLE4: Mapping[float, float] = {0.0: 72.1, 0.1: 74.5, 0.5: 72.7}
TABLE5: Mapping[float, float] = {0.0: 70.6, 0.5: 74.5, 1.0: 69.3}
#: accuracy on CIFAR-10, clusters at the beginning and at the end
TABLE6: Mapping[float, tuple[float, float, float]] = {0.3: (87.1, 4, 8), 0.7: (89.6, 4, 6), 0.9: (88.3, 4, 3)}


def by_column(rows: Rows, columns: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Return figures as row → column → measure → value."""
    return {
        row: {c: dict(zip(names, values, strict=True)) for c, values in zip(columns, found, strict=True)}
        for row, found in rows.items()
    }
