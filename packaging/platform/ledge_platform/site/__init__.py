"""One platform on one machine: where everything of it lies, how it is made, examined, backed up and brought back."""
