"""The part that all generated ``repro_<id>.py`` scripts share: copied into each, so it needs torch and nothing else.

``conformance.repro`` writes the rest: the inputs as they lay in memory, the call, and what was expected of it.
"""

import base64
import importlib
import os
import sys
import zlib

import torch


def unpack(packed, dtype):
    """Return a flat CPU tensor from its compressed bytes."""
    data = zlib.decompress(base64.b85decode(packed))
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def make(operand, device):
    """Make an input: its whole storage, and the view of it that is the tensor."""
    # Copied, since torch may not resize the unpacked memory.
    storage = unpack(operand["storage"], operand["dtype"]).to(device, copy=True)
    result = torch.empty(0, dtype=operand["dtype"], device=device)
    return result.set_(storage.untyped_storage(), operand["offset"], operand["shape"], operand["strides"])


def find(implementation, op, reference):
    """Return the function to call: of torch itself, of a module, or of an object in one ("module:object")."""
    module, _, path = (reference if implementation == "torch" else implementation).partition(":")
    if module.endswith(".py"):
        folder, file = os.path.split(os.path.abspath(module))
        sys.path.append(folder)
        module = file.removesuffix(".py")
    found = importlib.import_module(module)
    for name in filter(None, path.split(".")):
        found = getattr(found, name)
    return found if implementation == "torch" else getattr(found, op)


def storage_bytes(tensor):
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).cpu()


def builtin_class(kind):
    return next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")


def significant(strides, shape):
    empty = 0 in shape
    return [None if empty or size == 1 else stride for stride, size in zip(strides, shape, strict=True)]


def wrong_values(result, expected):
    """Yield messages about elements with wrong values."""
    flat = result.detach().cpu().reshape(-1)
    places = unpack(expected["places"], torch.int64)
    ours = flat[places]
    if "exact" in expected:
        exact = unpack(expected["exact"], expected["dtype"])
        right = ours == exact
        if exact.dtype.is_floating_point:
            right |= ours.isnan() & exact.isnan()
        low = high = exact
    else:
        ours = ours.double()
        low, high = unpack(expected["low"], torch.float64), unpack(expected["high"], torch.float64)
        right = ((low <= ours) & (ours <= high)) | (ours.isnan() & low.isnan())
    if expected["random"] is not None:
        right |= ~kept(result, expected["random"])[0].reshape(-1)[places]
    for packed in expected["also"]:
        other = unpack(packed, torch.float64)
        right |= (ours.double() == other) | (ours.isnan() & other.isnan())
    sign = unpack(expected["zero_sign"], torch.int8)
    right &= (sign == 0) | (ours != 0) | ((sign < 0) == ours.signbit())
    wrong = (~right & unpack(expected["judged"], torch.bool)).nonzero().reshape(-1)
    if len(wrong):
        first = int(wrong[0])
        index = [int(i) for i in torch.unravel_index(places[first], result.shape)]
        between = f"between {low[first].item()!r} and {high[first].item()!r}"
        yield f"values: {len(wrong)} wrong; at {index}: {ours[first].item()!r}, should lie {between}"


def kept(result, random):
    """Return where a random result differs from the other allowed value, and where a difference would show."""
    result = result.detach().cpu().double()
    instead = unpack(random["instead"], torch.float64).view(result.shape)
    mask = (result != instead) & ~(result.isnan() & instead.isnan())
    return mask, unpack(random["seen"], torch.bool).view(result.shape)


def wrong_masks(results, random, faults):
    """Yield messages about the elements that some random calls keep."""
    masks = [kept(result, random) for result in results]
    for fault in faults([mask for mask, _ in masks], masks[0][1], random["chance"]):
        yield f"distribution: {fault}"


def wrong_result(place, result, operands, expected):
    if not isinstance(result, torch.Tensor):
        yield f"metadata: result {place} is a {type(result).__name__}, should be a tensor"
        return
    metadata = {
        "shape": list(result.shape),
        "dtype": result.dtype,
        "strides": significant(result.stride(), result.shape),
    }
    for name, ours in metadata.items():
        theirs = expected[name]
        if name == "strides" and theirs is not None:
            theirs = significant(theirs, expected["shape"])
        if ours != theirs and theirs is not None:
            yield f"metadata: {name} {ours}, torch's is {theirs}"
    if expected["same_as"] is not None and result is not operands[expected["same_as"]]:
        yield f"metadata: the result should be operand {expected['same_as']} itself"
    traits = {"an inference tensor": result.is_inference(), "negated lazily": result.is_neg()}
    traits |= {"a parameter": type(result) is torch.nn.Parameter, "one that requires a gradient": result.requires_grad}
    for trait, is_so in traits.items():
        if is_so != (trait in expected["traits"]):
            yield f"metadata: the result {'is' if is_so else 'is not'} {trait}, unlike torch's"
    if not expected["shares"]:
        places = [operand.untyped_storage().data_ptr() for operand in operands]
        if result.untyped_storage().data_ptr() in filter(None, places):
            yield "metadata: the result shares memory with an operand"
        larger = result.numel() and storage_bytes(result).numel() > shown(result) * result.itemsize
        if larger and "in a storage larger than itself" not in expected["traits"]:
            yield "metadata: the result is in a storage larger than itself, unlike torch's"
    if metadata["shape"] == expected["shape"] and metadata["dtype"] == expected["dtype"]:
        yield from wrong_values(result, expected)


def shown(result):
    """Return the number of elements from the first to the last that a result shows."""
    return sum((size - 1) * stride for size, stride in zip(result.shape, result.stride(), strict=True)) + 1


def changed(operands, before, case):
    for number, (operand, was) in enumerate(zip(operands, before, strict=True)):
        now = storage_bytes(operand)
        if number in case["writes"] and number in case["written"]:
            if not torch.equal(now, unpack(case["written"][number], torch.uint8)):
                yield f"written: operand {number} does not hold what the call has to write"
            continue
        if number in case["writes"]:
            if len(was) != len(now):
                continue
            was, now = was.clone(), now.clone()
            given = case["operands"][number]
            start = given["offset"]
            for storage in (was, now):
                storage.view(given["dtype"]).as_strided(given["shape"], given["strides"], start).zero_()
                if operand.stride() != tuple(given["strides"]):
                    storage.view(given["dtype"])[start : start + operand.numel()].zero_()
        if not torch.equal(was, now):
            yield f"inputs_unchanged: operand {number} was changed where it should not be"


def moved(operands, versions, case):
    for number, (operand, version) in enumerate(zip(operands, versions, strict=True)):
        if (operand._version != version) != case["moved"][number] and operand.numel():
            yield f"versions: the version counter of operand {number} does not move as by torch's function"


def replaced(operands, storages):
    for number, (operand, storage) in enumerate(zip(operands, storages, strict=True)):
        if operand.untyped_storage()._cdata != storage._cdata:
            yield f"metadata: operand {number} was given another storage"


def bits(tensor):
    flat = tensor.detach().cpu().reshape(-1, 1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def alike(results, again):
    """Tell whether another call gave the same bits."""
    again = again if isinstance(again, tuple) else (again,)
    return len(again) == len(results) and all(
        isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(bits(a), bits(b))
        for a, b in zip(results, again, strict=True)
    )


def fresh(case):
    """Make the operands of one call."""
    return [make(operand, case["device"]) for operand in case["operands"]]


def attempt(case, call, function, seeded=True):
    """Make one call on fresh inputs; return its operands, its results or its exception, and messages about other
    changes."""
    operands = fresh(case)
    before = [storage_bytes(operand).clone() for operand in operands]
    storages = [operand.untyped_storage() for operand in operands]
    versions = [operand._version for operand in operands]
    if seeded:
        torch.manual_seed(case["seed"])
    try:
        value, error = call(function, operands), None
    # Any exception of the implementation is a result to look at.
    except (Exception, SystemExit) as raised:  # noqa: BLE001
        value, error = None, raised
    beside = list(changed(operands, before, case))
    beside += replaced(operands, storages)
    if error is None and case["moved"] is not None:
        beside += moved(operands, versions, case)
    return operands, value, error, beside


def memory_problems(case, call, function, guarded):
    """Yield messages about memory that was wrongly written, read or left alone."""

    def once(guard):
        given = enumerate(case["operands"])
        operands = [guard.operand(make(operand, "cpu"), number in case["writes"]) for number, operand in given]
        torch.manual_seed(case["seed"])
        with guard:
            value = call(function, operands)
        return guard.trespass(), value if isinstance(value, tuple) else (value,)

    try:
        trespass, first = once(guarded(case["device"], 0, 0))
        if trespass:
            yield f"guard_bands: {trespass}"
            return
        _, second = once(guarded(case["device"], 1, 1))
    # ``problems`` reports that.
    except (Exception, SystemExit):  # noqa: BLE001
        return
    for a, b in zip(first, second, strict=True):
        differ = (bits(a) != bits(b)).any(1).nonzero()
        if len(differ):
            index = [int(i) for i in torch.unravel_index(differ[0, 0], a.shape)]
            yield f"{case['failed']}: {len(differ)} elements depend on other memory than the operands', first {index}"


def problems(case, call, function, faults, favoured, guarded):
    if guarded:
        found = list(memory_problems(case, call, function, guarded))
        yield from found
        if found:
            return
    operands, value, error, touched = attempt(case, call, function)
    yield from touched
    if case["refusal"] is not None:
        if error is None:
            yield f"errors: took a call that torch refuses with {case['refusal']}"
        elif builtin_class(type(error)) != case["refusal"]:
            yield f"errors: raised {type(error).__name__}: {error}; torch raises {case['refusal']}"
        return
    if error is not None:
        if builtin_class(type(error)) != case["may_refuse"]:
            yield f"errors: torch takes this call; raised {type(error).__name__}: {error}"
        return
    expected = case["results"]
    results = value if isinstance(value, tuple) else (value,)
    if len(results) != len(expected) or isinstance(value, tuple) != case["tuple"]:
        yield f"metadata: {len(results)} results in a {type(value).__name__}; torch gives {len(expected)}"
        return
    for place, (result, one) in enumerate(zip(results, expected, strict=True)):
        yield from wrong_result(place, result, operands, one)
    if case["deterministic"] and not alike(results, attempt(case, call, function)[1]):
        yield "deterministic: two equal calls differ"
    if case["failed"] == "layout_invariant":
        copies = [operand.clone(memory_format=torch.contiguous_format) for operand in fresh(case)]
        torch.manual_seed(case["seed"])
        # Any exception of the implementation is a result to look at.
        try:
            again = call(function, copies)
        except (Exception, SystemExit) as raised:  # noqa: BLE001
            yield f"layout_invariant: of contiguous copies of the operands it raised {type(raised).__name__}: {raised}"
            return
        if case["layouts"] and not alike(results, again):
            yield "layout_invariant: contiguous copies of the operands give other bits"
        for place, (result, one) in enumerate(zip(again if case["tuple"] else (again,), expected, strict=True)):
            for problem in wrong_result(place, result, copies, one | {"strides": None}):
                yield f"layout_invariant: of contiguous copies: {problem}"
    if faults:
        next_seed = case | {"seed": case["seed"] + 1}
        calls = [attempt(case, call, function, seeded)[1] for seeded in (True, False)]
        calls.append(attempt(next_seed, call, function)[1])
        if any(not isinstance(value, torch.Tensor) or value.shape != results[0].shape for value in calls):
            yield "distribution: a repeated call did not give a result of this shape"
        else:
            yield from wrong_masks(calls, expected[0]["random"], faults)
            again = [attempt(case, call, function, False)[1] for _ in range(expected[0]["random"]["repeats"])]
            if again:
                yield from wrong_masks(again, expected[0]["random"], favoured)


def main(case, call, faults=None, favoured=None, guarded=None):
    """Return the exit status: 0 all is well, 1 something is wrong, 2 it cannot be run here.

    ``faults`` and ``favoured`` judge random masks, ``guarded`` gives operands and new tensors margins and poison.
    """
    implementation = sys.argv[1] if len(sys.argv) > 1 else case["implementation"]
    if case["device"].startswith("cuda") and not torch.cuda.is_available():
        print(f"this case was found on {case['device']}, and torch finds no GPU here")
        return 2
    if case["device"] == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if implementation == "torch" and not case["reference"]:
        print(f"torch has no {case['op']}")
        return 2
    torch.set_float32_matmul_precision(case["precision"])
    sys.path.append(os.getcwd())
    function = find(implementation, case["op"], case["reference"])
    found = list(problems(case, call, function, faults, favoured, guarded))
    for problem in found:
        print(problem)
    by = ", by the semantics of torch's CPU" if case["semantics"] == "cpu" else ""
    print(f"{case['id']}: {implementation} {'fails' if found else 'is right'}{by}")
    return 1 if found else 0
