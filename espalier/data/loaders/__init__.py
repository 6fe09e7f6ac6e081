"""One file per published format: files in, a `Dataset` out. Begin at `base` (a layout) and any of the short ones."""
