"""One file per published method; importing a file registers it."""
