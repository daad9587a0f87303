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

    Figures are torch's time over ours on an H200, from reports/results/nvidia-h200/attention-float32.txt. Products on
    the CUDA cores are at 0.16 to 0.6, but for decoding.
    """
    if largest <= 64:
        # 1.30 to 1.68; with 64 rows 1.14 to 1.40, with 32 keys 1.12 to 1.37.
        return (128, 64, 8, 2) if rows > 64 else (min(max(next_power_of_2(rows), 16), 32), 64, 4, 2)

    if largest > 128:
        # 0.43 to 0.49 in pieces of the head dim. In 128 rows of whole head dims 0.45 to 0.50, but a tenth of the
        # instructions of their loop spill.
        return (32, 16, 4, 2) if rows > 16 else (16, 32, 4, 2)

    programs = groups * -(-rows // 128)
    waves = -(-programs // multiprocessors)
    # A multiprocessor takes one of these at a time.
    is_even = programs > 0.85 * waves * multiprocessors

    if rows > 64 and (mask_bytes == 1 or (is_even and not causal and not mask_bytes)):
        # 2 x 16 x 4096 x 128 1.04 (with 32 rows 0.91), 4 x 16 x 1024 x 128 with a bool mask 1.03 (0.80).
        return 128, 64, 8, 1

    if causal and rows > 16:
        # 1 x 16 x 2048 x 128 0.97 (with 32 keys 0.94), 1 x 16 x 2048 x 96 0.94 (0.83).
        return 32, 64, 4, 2

    # 2 x 20 x 777 x 128 0.95 (with 64 keys 0.68), 2 x 20 x 777 x 80 0.82 (0.51).
    return (32, 32, 4, 3) if rows > 16 else (16, 32, 4, 3)
