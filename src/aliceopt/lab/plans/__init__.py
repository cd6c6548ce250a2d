"""Which runs there are: of the experiments in ``experiments``, and of a study."""
