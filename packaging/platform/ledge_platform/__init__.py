"""The platform team's side of Ledge's signed updates: what a fleet may run, who runs it and when."""
