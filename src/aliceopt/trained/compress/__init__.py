"""A trained network pruned: criteria, the survey, records, their numbers, pictures and page."""
