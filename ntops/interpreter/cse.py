def eliminate(tree, known):
    """To come."""
