"""The randomized fault run: ``python -m tests.faults --seconds 60 --seed 1``."""
