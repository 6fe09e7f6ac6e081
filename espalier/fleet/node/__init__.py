"""One process of the fleet: its host, engine, journal, worker and data."""
