"""An error message for whoever makes packages."""


class Failure(Exception):
    pass
