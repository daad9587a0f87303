"""Tiles of float32 attention whose IEEE products are three in TF32, on tensor cores; registers bound them."""

from ntops.launch.devices import next_power_of_2

# Rows and keys, warps and stages.
SPACE = (
    (128, 64, (8, 2)),
    (128, 64, (8, 1)),
    (32, 64, (4, 2)),
    (32, 32, (4, 3)),
    (32, 16, (4, 2)),
    (16, 64, (4, 2)),
    (16, 32, (4, 3)),
)


def choose(rows, groups, largest, causal, mask_bytes, multiprocessors):
    """Choose rows, keys, warps and stages of a tile.

    Figures are torch's time over ours on an H200; torch's products are three in TF32, too. They are from
    reports/results/nvidia-h200/attention-float32.txt; where two stages did not fit, one ran. Products on the CUDA cores
    are at 0.16 to 0.6, but for decoding.
    """
    if largest <= 64:
        # 1.21 to 1.52; with 32 keys 1.03 to 1.23.
        return (128, 64, 8, 2) if rows > 64 else (min(max(next_power_of_2(rows), 16), 32), 64, 4, 2)

    if largest > 128:
        # 0.33 to 0.37 in pieces of the head dim. 0.40 to 0.55 in larger tiles, 4 to 10 % of whose instructions spill.
        return (32, 16, 4, 2) if rows > 16 else (16, 32, 4, 2)

    programs = groups * -(-rows // 128)
    waves = -(-programs // multiprocessors)
    # A multiprocessor takes one of these at a time.
    is_even = programs > 0.85 * waves * multiprocessors

    if rows > 64 and (mask_bytes == 1 or (is_even and not causal and not mask_bytes)):
        # 2 x 16 x 4096 x 128 1.01 (with 32 rows 0.84), 4 x 16 x 1024 x 128 with a bool mask 1.00 (0.47).
        return 128, 64, 8, 1

    if rows <= 16 or mask_bytes:
        # With 64 keys the same, but spills; with a mask, 0.75 and 0.47.
        return (16, 32, 4, 3) if rows <= 16 else (32, 32, 4, 3)

    # 2 x 20 x 777 x 128 0.82, 1 x 16 x 2048 x 128 causal 0.87 (with 128 rows 0.71 and 0.77).
    return 32, 64, 4, 2
