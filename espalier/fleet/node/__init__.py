"""One host: how it starts, what its engine does with letters, timers and training, what it keeps. Begin with `host`."""
