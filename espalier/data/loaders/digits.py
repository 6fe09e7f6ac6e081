"""Handwritten digits bundled with scikit-learn: 1,797 images of 8×8 pixels, no download."""

from __future__ import annotations

import numpy as np

from espalier.core.errors import ConfigError
from espalier.core.seeds import stream
from espalier.data.dataset import Dataset
from espalier.data.loaders.base import DatasetEntry
from espalier.data.rows import stratified_mask


def read(*, test_fraction: float = 0.2) -> Dataset:
    """Make the dataset: images ``[n, 1, 8, 8]`` in 0…1; every class gives the same share to the test part.

    The split is fixed (it does not depend on a run's seed), so results are comparable between runs.
    """
    from sklearn.datasets import load_digits

    if not 0.01 <= test_fraction <= 0.9:
        raise ConfigError(f"Dataset 'digits': test_fraction = {test_fraction}: must be 0.01 to 0.9.")
    bunch = load_digits()
    x = (bunch.images / 16.0).astype(np.float32)[:, None]
    y = bunch.target.astype(np.int64)
    test = stratified_mask(y, test_fraction, stream(0, "digits", "split"))
    return Dataset.from_arrays(
        x[~test],
        y[~test],
        x[test],
        y[test],
        name="digits",
        n_classes=10,
        meta={"classes": tuple("0123456789")},
    )


ENTRY = DatasetEntry(
    name="digits",
    kind="classification",
    samples=(1438, 359),
    classes=10,
    licence="CC BY 4.0",
    citation="Alpaydin & Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (via scikit-learn)",
    make=read,
)
