"""How much a run gives away: the accountant of differential privacy."""
