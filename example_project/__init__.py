"""A small shop whose exports and mails are guarded tasks; ``python -m example_project.demo`` shows every ending."""
