"""A trained network looked at: what is asked, the survey, its numbers, pictures and page."""
