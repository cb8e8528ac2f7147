"""The platform team's side of Ledge's signed updates: the releases of a fleet, and which boxes run them when."""
