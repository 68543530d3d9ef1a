"""The command line: thin typer commands over the package; what needs torch is imported when a command runs."""
