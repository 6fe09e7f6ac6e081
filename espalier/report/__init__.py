"""Reports and the live page: what a run's record holds, for people to look at."""
