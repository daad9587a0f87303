"""The mistakes of attention that are planted: their names, by kind and by the check that has to catch them."""

from __future__ import annotations

VALUES: dict[str, dict[str, str]] = {
    "causal": {
        "causal_off_by_one": "a query does not see its own key",
        "causal_one_more": "a query sees the key after its own",
        "causal_lower_right": "the triangle begins at the last key where UPPER_LEFT is meant",
        "causal_variant_ignored": "LOWER_RIGHT is taken for UPPER_LEFT",
        "causal_at_positions": "new rows of a cache see the first keys and not the last",
        "causal_whole_blocks": "the triangle has the steps of a block of keys",
        "causal_ignored_for_one": "is_causal means nothing to a single query",
        "variant_makes_causal": "a causal_variant without is_causal",
    },
    "heads": {
        "heads_modulo": "query head h reads key head h % Hkv",
        "heads_first": "every query head reads the first key head",
        "heads_of_3d": "without a batch dim the ratio of heads is lost",
    },
    "scale": {
        "scale_ignored": "the default whatever is given",
        "scale_twice": "it multiplies queries, and scores again",
        "scale_of_values": "the default of the values' head dim",
        "scale_of_padding": "the default of the head dim rounded up to a power of two",
        "scale_zero": "0 is taken for None",
        "scale_magnitude": "a negative one is taken for positive",
    },
    "mask": {
        "mask_finite_ignored": "a float mask counts only where it is -inf",
        "mask_log2": "a float mask is added to scores in units of log 2",
        "mask_scaled": "a float mask is added before the scale",
        "mask_head": "all heads have the mask of the first one",
        "mask_kv_head": "the mask of a key head, for all query heads that share it",
        "mask_batch": "all sequences have the mask of the first one",
        "mask_query": "all queries have the mask of the first one",
        "mask_key": "a mask with one column counts for the first key alone",
        "mask_inverted": "True of a bool mask leaves a key out",
        "mask_rounded": "a float32 mask is rounded to the half type of the queries",
        "mask_3d_by_batch": "the first dim of a mask of three is the batch",
        "mask_strides": "a mask is read as if it were contiguous",
        "mask_like_padding": "a float mask is one of bools if its first row has only 0 and -inf",
        "masked_row_nan": "a row without keys is NaN",
        "masked_row_mean": "a bool mask is a large negative number, and a row without keys the mean of all values",
        "masked_row_first": "a row without keys has the first value",
    },
    "tail": {
        "tail_last_key": "the last key is dropped where blocks are not full",
        "tail_padding": "the padding of the last block takes part with a score of 0",
        "tail_block": "a last block that is not full is left out",
        "tail_long": "keys past 128 are left out",
        "tail_query": "queries past the last full block see no keys",
        "no_keys_nan": "without keys the result is NaN",
    },
    "dims": {
        "dim_64": "elements of a head past 64 are left out",
        "dim_power": "elements of a head past the last power of two are left out",
        "value_dim_128": "elements of values past 128 are never written",
        "value_dim_of_keys": "as many elements of values as a key has",
    },
    "numerics": {
        "normaliser_half": "the sum of the exponentials is kept in the half type",
        "accumulator_half": "the sum of values is kept in the half type",
        "scores_half": "scores are rounded to the half type",
        "products_half": "queries are scaled in the half type",
        "maximum_not_rescaled": "what is summed keeps its scale when a block has a larger score",
        "sum_not_rescaled": "the values are rescaled, their weights' sum is not",
        "maximum_from_zero": "scores below 0 are not shifted, so that low ones underflow",
        "maximum_missing": "exponentials of scores as they are",
        "base_two": "2^x in place of exp(x)",
        "bfloat16_inside": "float16 weights are rounded to bfloat16",
        "tf32_inside": "float32 operands lose 13 bits",
        "float64_inside_float32": "float64 is computed in float32",
        "nan_dropped": "NaN becomes 0",
    },
    "layout": {
        "query_strides": "queries are read as if they were contiguous",
        "key_strides": "keys are read as if they were contiguous",
        "value_strides_of_keys": "values are read with the strides of keys",
    },
    "cache": {
        "cache_read_before": "the cache is read before the new rows are there",
        "cache_first_length": "every sequence is as long as the first",
        "cache_longest": "every sequence is as long as the longest, with what lies there",
        "cache_row_before": "the first row of the history is left out",
        "cache_row_after": "a row past the last one is read",
        "cache_new_only": "the history is not read",
        "cache_mask_shifted": "the mask's first column is for the first new row",
    },
}
"""Describes for each kind what the result shows."""
OTHERS = {
    ("written", "cache"): {
        "cache_slot_off_by_one": "rows go one further than the position, up to the end",
        "cache_values_in_keys": "values are written to the key cache where they fit",
        "cache_not_written": "new rows are read from where they are, and the cache is left alone",
        "cache_one_row_more": "a row past the new ones is zeroed",
        "cache_first_slot": "all sequences are written where the first one is",
        "cache_value_left": "values are not written",
        "cache_view_copied": "a view that is not contiguous is copied, and the copy written",
    },
    ("inputs_unchanged", "cache"): {
        "cache_written_first": "the cache is written before a call is refused",
        "query_scaled_in_place": "queries are scaled where they are",
    },
    ("errors", "refusals"): {
        "capacity_clamped": "positions past the capacity are moved to where rows fit",
        "mask_with_causal": "attn_mask together with is_causal is taken",
        "dropout_ignored": "dropout_p means nothing",
        "heads_unequal": "heads share keys without enable_gqa",
        "refused_as_value_error": "what is refused is refused with ValueError",
    },
    ("metadata", "outputs"): {
        "float32_result": "half types give float32",
        "dim_of_queries": "the result has the head dim of queries, cut or padded",
    },
}
"""By the check that has to catch it, and kind."""
