"""The one error of the data sets."""


class DataError(ValueError):
    """Something a user can put right: a file is missing or wrong, or the request makes no sense.

    The message names the file or the value, what is wrong with it and what to do.
    """
