"""Which method gives the owners of a table the best model? From a CSV file to a verdict and a report.

    python compare_on_csv.py [FILE.csv LABEL OWNER]

The file has a row per sample, a column to learn and a column that says whose the row is; the others are features.
Without a file, one is made: measurements of breast tumours, dealt to twelve clinics of unlike patients.
"""

import sys

import pandas as pd
from sklearn.datasets import load_breast_cancer

import espalier


def clinics() -> pd.DataFrame:
    """Return a table to try: each clinic sees tumours of a certain size, as a specialised one would."""
    table = load_breast_cancer(as_frame=True).frame
    table["clinic"] = (pd.qcut(table["mean radius"], 4, labels=False) * 3 + table.index % 3).astype(int)
    return table


if len(sys.argv) == 4:
    file, label, owner = sys.argv[1:]
    table = pd.read_csv(file)
else:
    table, label, owner = clinics(), "target", "clinic"

data = espalier.Dataset.from_pandas(table, label=label, owner=owner)
setting = {
    "task": {"model": "mlp", "model_options": {"hidden": [16]}},
    "partition": {"kind": "owner"},  # every owner is a device
    "fleet": {"devices": table[owner].nunique(), "edges": min(4, table[owner].nunique())},
    "training": {"lr": 0.05},
    "stop": {"rounds": 10, "budget": "time"},  # the first method closes 10 rounds, the others have its virtual time
}
runs = espalier.compare(["hierfavg", "fedavg", "standalone"], setting, seeds=range(3), dataset=data)
print(runs.verdict())
print(runs.table()[["method", "acc_device", "acc_device_std", "behind", "told_apart"]].round(3).to_string(index=False))
print("report:", runs.report("report.html"))
