"""Hostile devices against robust merges: a study of this project's, and its page. No method is defined here."""
