"""What is wrong, in words for whoever makes packages."""


class Failure(Exception):
    pass
