"""Longer runs on one subject; each is a subcommand, and `make bench` calls the shorter form."""
