"""Errors that end a verb. The texts are for people: one line each."""

DONE, REFUSED, FAILED = 0, 1, 2  # exit statuses; argparse ends with 2 as well


class Failure(Exception):
    """Something could not be done; the text names it and the remedy."""

    status = FAILED


class Refused(Failure):
    """Something was judged, and is not good."""

    status = REFUSED
