"""All methods side by side on four datasets, in a star and in a tree; begin with `study`. It may import what runs."""
