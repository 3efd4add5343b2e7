"""The commands of `labelflow`: one file a command, imported when it is called. What needs torch is imported once the
arguments have been understood."""
