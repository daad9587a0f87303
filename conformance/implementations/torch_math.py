"""torch's attention by its math backend, the cache composed around it, as an implementation to be judged."""

from conformance.ops._attention import by_math as scaled_dot_product_attention

__all__ = ["scaled_dot_product_attention"]
conformance_claims = {"*": ("deterministic",)}
