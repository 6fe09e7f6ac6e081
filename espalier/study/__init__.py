"""The papers' tables: settings and published figures."""
