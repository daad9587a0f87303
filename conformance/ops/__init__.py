"""One module per operator, each with its ``SPEC``; modules with a leading underscore are shared by a family."""
