"""Launch kernels: make them, choose configurations, keep tuned tables, record calls, and decide which side of torch's
dispatcher a call belongs to. This package lies below the host layer, which knows what a call means.
"""
