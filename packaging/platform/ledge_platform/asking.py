"""Passphrases and PINs: from the environment, else from the person at the terminal."""
import getpass
import os
import sys

from .errors import Failure


def from_environment(key_name, variable):
    """(the value in the environment, the name of the key's own variable). It goes before the general one."""
    specific = f"{variable}_{key_name.upper().replace('-', '_').replace('.', '_')}"
    return os.environ.get(specific) or os.environ.get(variable), specific


def ask(key_name, variable, prompt, what="passphrase"):
    """From the environment, else from the person at the terminal."""
    found, specific = from_environment(key_name, variable)
    if found is None:
        if not sys.stdin.isatty():
            raise Failure(
                f"the key {key_name} is under a {what}: set {specific} or {variable}, or run this in a terminal"
            )
        found = getpass.getpass(prompt)
    if not found:
        raise Failure(f"the {what} of the key {key_name} is empty")
    return found
