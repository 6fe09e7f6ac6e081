"""One file per published format: files in, a `Dataset` out."""
