"""The host layer: everything that a torch function does before and after its kernel, in one place.

``arguments`` refuses what cannot be computed, ``promotion`` chooses dtypes, ``dim_order`` chooses the order of
dims and merges them, ``output`` allocates or checks ``out=``, and ``elementwise`` puts them together.
"""
