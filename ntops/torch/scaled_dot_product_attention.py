import torch

from ntops.host import attention, attention_arguments, kv_cache
from ntops.launch import boundary
from ntops.launch.recorder import repeatable


def _state():
    return torch.get_float32_matmul_precision(), kv_cache.is_checked()


@repeatable(state=_state)
def scaled_dot_product_attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    causal_variant=None,
    present_key=None,
    present_value=None,
    present_key_slot=None,
    present_value_slot=None,
):
    """Compute ``softmax(query @ key.mT * scale + mask) @ value``.

    The function is :func:`torch.nn.functional.scaled_dot_product_attention`. It needs memory for the output and for at
    most a few hundred blocks of partial results; scores and masks are never materialised. Half types accumulate in
    float32, and probabilities are rounded to the dtype of the value; float32 follows
    :func:`torch.get_float32_matmul_precision` at the time of the call.

    New rows of keys and values can be written to a KV cache first, in two forms. Views: ``present_key`` and
    ``present_value`` are written to ``present_key_slot`` and ``present_value_slot``, tensors of the same shapes that
    usually are views of the memory of ``key`` and ``value``. Positions: ``present_key`` and ``present_value`` are the
    caches, (B, Hkv, capacity, E) and (B, Hkv, capacity, Ev), and ``present_key_slot`` is an int, or an integer tensor
    (B,): the n rows of ``key`` and ``value`` are written from that position of each sequence on, and sequence b attends
    to its first ``slot[b] + n`` positions. Positions on a GPU are not checked (rows out of range are not written)
    unless the environment has ``NTOPS_CHECK=1``.

    :param query: A floating-point tensor, (B, Hq, L, E) or (Hq, L, E), E from 1 to 256, of any strides.
    :param key: A tensor of the same dtype, (B, Hkv, S, E).
    :param value: A tensor of the same dtype, (B, Hkv, S, Ev), Ev from 1 to 256.
    :param attn_mask: A tensor that broadcasts to (B, Hq, L, S): of bool, true where a key takes part, or of numbers
        that are added to the scores, of the query's dtype or float32. Not together with ``is_causal``. If sequences of
        a cache differ in length, S is the length of the longest.
    :param dropout_p: Must be 0.
    :param is_causal: Whether a query sees no later keys than ``causal_variant`` says.
    :param scale: The factor of the scores; ``None``: ``1 / sqrt(E)``.
    :param enable_gqa: Whether Hkv may be a divisor of Hq: query head h then reads key and value head
        ``h // (Hq // Hkv)``.
    :param causal_variant: A ``CausalVariant``, ours or torch's; only with ``is_causal``. UPPER_LEFT: query i sees keys
        up to i. LOWER_RIGHT: up to ``i + S - L``. ``None``: UPPER_LEFT, but LOWER_RIGHT with positions in a cache.
    :return: A tensor, (B, Hq, L, Ev), with ``query``'s order of dims in memory. A row in which no key takes part is 0.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes, dtypes, devices or positions do not fit, or both a mask and ``is_causal`` are given.
        Nothing has been written to the cache then.
    :raises NotImplementedError: Dropout, other head dims, other numbers of dims, batch or head dims that broadcast,
        sparse, quantized or nested tensors; a KV cache by positions with an
        operand that requires grad.
    """
    presents = (present_key, present_value)
    slots = (present_key_slot, present_value_slot)
    checked = attention_arguments.check_call(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, causal_variant, presents, slots
    )
    slot = checked.slot

    # Attention reads these rows, so write them first.
    keys, values = key, value

    if checked.form == "views":
        kv_cache.write(slots, presents, 0)
    elif checked.form == "positions":
        kv_cache.write(presents, (key, value), slot)
        keys, values = kv_cache.written(presents, slot, checked.length)

    output = attention.new_output(query, value.shape[-1])

    if not boundary.has_work(output):
        return output

    batched = [x if x is None or x.ndim == 4 else x.unsqueeze(0) for x in (output, query, keys, values, checked.mask)]
    by_sequence = slot if isinstance(slot, torch.Tensor) else None
    attention.launch(*batched, checked.lower_right, checked.scale, by_sequence, key.shape[-2])

    return output
