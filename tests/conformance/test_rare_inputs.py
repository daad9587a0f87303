"""Cases of ci reach what most tests leave out: a defect that only such numbers, forms, layouts and sizes show fails."""

from __future__ import annotations

import hypothesis
import pytest

from conformance import drawing, profiles, runner
from conformance import spec as specs
from conformance.selftest import defect_registry

BANK = defect_registry.bank()
CALLS = (
    ("clamp_max_does_not_promote", "float16 bfloat16 int32"),
    ("sum_operands_cut_off_in_autocast", "float32"),
    ("mean_operands_cut_off_in_autocast", "float32"),
    ("layer_norm_gradient_of_the_input_alone", "float32"),
    ("mm_gradient_weight_of_the_first_step", "float32"),
    ("relu_gradient_result_past_autograd", "float32"),
    ("dropout_gradient_mask_of_another_seed", "float32"),
    ("softmax_one_of_two_batches", "float32"),
    ("dropout_parts_draw_for_themselves", "float32"),
    ("dropout_parts_that_may_not_draw", "float32"),
)
VALUES = (
    ("mul_product_of_32_bits", "int64"),
    ("div_quotient_of_floats", "int64"),
    ("eq_compared_as_floats", "int64"),
    ("ge_compared_as_floats", "int64"),
    ("bitwise_and_mask_has_a_sign", "int64"),
    ("bitwise_not_last_bit_of_bools", "bool"),
    ("eq_bools_by_bytes", "bool"),
    ("le_beside_float64", "int64 float64"),
    ("pow_odd_roots", "float32"),
    ("pow_sixth_power", "float32 float16 bfloat16"),
    ("clamp_unlimited_is_the_input", "float32"),
    ("addmm_factors_of_half", "float16"),
    ("softmax_first_tile_masked", "float32"),
)
FORMS = (
    ("sub_tensors_are_whole", "float32"),
    ("rms_norm_tensors_are_whole", "float32"),
    ("le_narrow_numpy", "float64"),
    ("layer_norm_sizes_are_tuples", "float32"),
)

LAYOUTS = (
    ("addmm_stride_of_8_bits", "float32"),
    ("relu_stored_in_place", "float32"),
)
VIEWS = (
    ("mm_not_mirrored", "float32"),
    ("ge_one_address_is_one_tensor", "float32"),
    ("sub_with_itself", "float32"),
    ("add_out_of_any_strides", "float32"),
    ("scaled_dot_product_attention_packed_by_address", "float32"),
    ("rotary_position_embedding_tables_by_address", "float32"),
    ("fused_gated_mlp_weights_by_address", "float32"),
    ("mul_windows_are_apart", "float32"),
    ("neg_eight_dims", "float32"),
    ("rms_norm_offset_of_16_bits", "float32"),
    ("layer_norm_swapped_in_training", "float32"),
    ("exp_inference_only", "float32"),
)
FAR = (
    ("mul_far_rows_of_32_bits", "float32"),
    ("mm_far_rows_of_32_bits", "bfloat16"),
    ("sub_far_offset_of_32_bits", "float32"),
    ("layer_norm_far_offset_of_32_bits", "float32"),
    ("exp_far_rows_are_not_written", "float32"),
    ("abs_other_memory_for_what_is_fixed", "float32"),
    ("cumsum_other_memory_for_what_is_fixed", "int64"),
    ("tanh_gradient_third_of_a_constant", "float32"),
)
SIZES = (
    ("mm_rest_of_parts", "float32"),
    ("fp8_gemm_rest_of_blocks", "float8_e4m3fn"),
    ("scaled_dot_product_attention_groups_of_eight", "float32 float16"),
    ("scaled_dot_product_attention_scale_of_a_divisor", "float32"),
)
MODELS = (
    ("rms_norm_tail_of_hidden_sizes", "float32"),
    ("rms_norm_heads_of_a_projection", "float32"),
    ("layer_norm_heads_of_a_projection", "float16"),
    ("bmm_last_key_of_heads", "float32"),
    ("matmul_one_token_of_each", "float32"),
    ("matmul_heads_of_a_group", "float32"),
    ("mm_leading_dim_of_packed_weights", "float32"),
    ("mm_steps_of_a_router", "float32"),
    ("addmm_leading_dim_of_packed_weights", "float32"),
    ("rotary_position_embedding_pairs_past_a_power_of_two", "float32"),
)
LARGE = (
    ("fused_rmsnorm_rope_rows_of_15_bits", "float32"),
    ("dequantize_fp8_rows_of_15_bits", "float8_e5m2"),
    ("quantize_fp8_largest_of_the_first", "float32"),
    ("softmax_long_rows_of_float32", "float64"),
    ("mm_rest_of_splits", "float32"),
    ("fp8_gemm_rows_of_one_grid", "float8_e4m3fn"),
    ("fused_gated_mlp_rest_of_hidden", "float32"),
)
SCENES = (
    "silu_cut_tokens_as_rows",
    "add_turned_beside_a_row",
    "mul_shared_heads_beside_others",
    "ge_columns_of_an_outer",
    "add_gradient_summed_over_the_batch_alone",
    "mean_statistics_of_whole_blocks",
    "amax_last_group_of_short_rows",
    "sum_2_neighbours_in_half",
    "mean_8_neighbours_in_half",
    "layer_norm_weight_of_a_tile",
    "mm_columns_of_a_token",
    "bmm_heads_past_128",
    "rotary_position_embedding_positions_past_1024",
    "scaled_dot_product_attention_mask_of_sequences",
    *(f"{op}_special_numbers_between_tiles" for op in ("amax", "argmax", "sum", "cumsum", "logsumexp", "softmax")),
    "logsumexp_one_dim_after_the_other",
    "pow_reciprocals_of_positive_powers",
    "pow_newton_step_of_a_reciprocal",
    "cross_entropy_labels_of_16_bits_behind_the_classes",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_the_scenes_of_some_dtype_show_the_defect(name):
    dtypes = specs.registry()[BANK[name].op].dtypes
    assert any(any(failing(BANK[name], dtype, "scenes")) for dtype in dtypes)


@pytest.mark.parametrize(("name", "dtype"), LARGE)
def test_the_large_cases_of_one_dtype_show_the_defect(name, dtype):
    assert any(failing(BANK[name], dtype, "large", runner.LARGE[""]))


@pytest.mark.parametrize(("name", "dtype"), [*CALLS, *VALUES, *FORMS, *LAYOUTS, *VIEWS, *FAR, *SIZES, *MODELS])
def test_the_cases_of_one_dtype_show_the_defect(name, dtype):
    assert any(any(failing(BANK[name], one)) for one in dtype.split())


def failing(defect, dtype, kind="legal", large=0):
    """Whether each case of ci fails."""
    settings, dtypes = profiles.PROFILES["ci"], specs.registry()[defect.op].dtypes
    for part in profiles.rounds(defect.op, dtype, False, dtypes, hypothesis.settings(settings), 0, large):
        for case in drawing.drawn(part.draws, part.seed, part.examples):
            if part.kind == kind:
                verdict = runner.judge(case, defect.implementation, "cpu", (defect.check,))
                yield verdict.status == "failed"
