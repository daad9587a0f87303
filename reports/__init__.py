"""Reports for people: accuracy, speed and coverage per GPU, and comparison with a baseline. ``python -m reports``."""
