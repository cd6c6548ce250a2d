"""Optimizers as the lab drives them: Alice, torch's own, and what torch does not have."""
