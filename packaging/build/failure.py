"""An error message for the person who builds packages."""


class Failure(Exception):
    pass
