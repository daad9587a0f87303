"""Compares two files of ``outcomes.py``, such as of the interpreter and of a GPU: ``compare.py A.pt B.pt OUT.json``.

Prints, for each family of kernels, in how many launches all bits agree, and the largest distance of two floats in
units in the last place, and of two results relative to the largest of their launch.
"""

import json
import sys

import torch


def ulps(a, b):
    """The largest distance of two float tensors in units in the last place; NaN is equal to NaN."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    one, other = (tensor[~(a.isnan() & b.isnan())].contiguous().view(integers).long() for tensor in (a, b))
    lowest = -(2 ** (8 * a.element_size() - 1))
    # Negative floats count downwards from zero.
    one, other = (torch.where(number < 0, lowest - number, number) for number in (one, other))

    return int((one - other).abs().max()) if len(one) else 0


def compare(ours, theirs):
    """What is to be said about one family."""
    row = {"launches": len(ours), "identical": 0, "max ulps": 0, "max relative": 0.0, "refused": []}

    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, str) or isinstance(other, str):
            row["refused"].append(one if isinstance(one, str) else other)
            continue

        pairs = list(zip(one, other, strict=True))
        bits = [torch.equal(*(t.contiguous().view(-1).view(torch.uint8) for t in pair)) for pair in pairs]
        row["identical"] += all(bits)

        for a, b in pairs:
            if a.is_floating_point():
                row["max ulps"] = max(row["max ulps"], ulps(a, b))
                scale = b.double().abs().nan_to_num(posinf=0).max()
                distance = (a.double() - b.double()).abs().nan_to_num(posinf=0).max()
                row["max relative"] = max(row["max relative"], float(distance / scale) if scale else float(distance))

    row["refused"] = sorted(set(row["refused"]))

    return row


if __name__ == "__main__":
    ours, theirs = torch.load(sys.argv[1]), torch.load(sys.argv[2])
    table = {name: compare(ours[name], theirs[name]) for name in ours if name in theirs}

    for name, row in table.items():
        print(f"{name:24}", *(f"{key} {value}" for key, value in row.items()), sep="  ")

    with open(sys.argv[3], "w") as file:
        json.dump(table, file, indent=1)

    print("wrote", sys.argv[3])
