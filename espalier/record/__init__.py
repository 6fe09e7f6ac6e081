"""The run's database, and what is read from it."""
