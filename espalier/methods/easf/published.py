"""The figures of EASF's Tables I to VI (Xu et al., IEEE TMC), as printed. Accuracies are shares, times seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Tables I and II: numbers of devices (MNIST, 2 classes per device)
DEVICES = (30, 60, 100, 150, 200)
#: Tables III and IV: classes per device (EMNIST, 50 devices)
CLASSES = (4, 8, 16, 47)
#: Table VI: classes per device (EMNIST)
ABLATION_CLASSES = (6, 10)

#: highest accuracy within 250 s
TABLE1: Mapping[str, Sequence[float]] = {
    "Syn": (0.7805, 0.7302, 0.7348, 0.7308, 0.7594),
    "KMA-RAF": (0.8329, 0.7846, 0.8344, 0.8798, 0.8353),
    "HFL": (0.8266, 0.8054, 0.8601, 0.8737, 0.8709),
    "EASF": (0.8436, 0.8755, 0.9143, 0.9186, 0.9225),
}
#: seconds until 0.68 is exceeded
TABLE2: Mapping[str, Sequence[float]] = {
    "Syn": (148.90, 185.39, 209.66, 190.69, 174.31),
    "KMA-RAF": (59.80, 115.62, 64.89, 70.10, 126.15),
    "HFL": (107.14, 103.31, 109.99, 89.00, 110.90),
    "EASF": (49.57, 96.97, 51.86, 46.40, 43.50),
}
#: highest accuracy within 500 s
TABLE3: Mapping[str, Sequence[float]] = {
    "Syn": (0.4413, 0.5898, 0.6669, 0.7131),
    "KMA-RAF": (0.5426, 0.6930, 0.7331, 0.7898),
    "HFL": (0.5294, 0.6856, 0.7495, 0.7835),
    "EASF": (0.6218, 0.7395, 0.7893, 0.8139),
}
#: seconds until 0.44 is exceeded
TABLE4: Mapping[str, Sequence[float]] = {
    "Syn": (486.36, 317.82, 216.99, 185.25),
    "KMA-RAF": (298.47, 172.84, 70.51, 62.47),
    "HFL": (315.20, 175.49, 125.99, 110.09),
    "EASF": (174.86, 83.19, 61.33, 28.68),
}
#: a node's time in training, transmission and waiting, in percent
TABLE5: Mapping[str, tuple[float, float, float]] = {
    "Syn": (4.9, 29.3, 65.8),
    "KMA-RAF": (8.9, 23.9, 67.2),
    "HFL": (8.3, 27.9, 63.8),
    "EASF": (18.2, 26.7, 55.1),
}
#: highest accuracy within 400 s of the eight sets, for 6 and 10 classes per device
TABLE6: Mapping[str, Sequence[float]] = {
    "#1": (0.5757, 0.6880),
    "#2": (0.6319, 0.6775),
    "#3": (0.6395, 0.7457),
    "#4": (0.5956, 0.6850),
    "#5": (0.6647, 0.7620),
    "#6": (0.6706, 0.7518),
    "#7": (0.6729, 0.7483),
    "#8": (0.7095, 0.7753),
}
