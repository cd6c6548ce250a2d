"""One run after another, or many at once, each recorded as it goes."""
