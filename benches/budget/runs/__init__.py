"""Runs that show one thing at length; each is a subcommand of its own, and `make bench` calls the shorter form."""
