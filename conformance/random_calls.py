"""Make a call of a random operator again: from the state of torch's generator that the first one had, many times, in
another thread, or for each part of a batch of ``torch.func.vmap``.

Loaded by its path into the judged process, so it needs torch and nothing else.
"""

import contextlib
import threading

import torch

REPLAYED, MANY, THREAD, BATCHED = "replayed", "many", "in a thread", "batched"


def _replayed(function, tools, recorded):
    """Let the call be made twice, as activation checkpointing does: from one state of the generator, which is set again
    in between. Return both results.

    :param recorded: As re-entrant checkpoints do: the first time no gradients are recorded, the second time they are.
    """

    def call(*args, **kwargs):
        given = tools.operands(args, kwargs)
        device = next((one.device for one in given), torch.device("cpu"))
        generators = [torch.default_generator]
        if device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index])
        # Not those of generators that were just seeded.
        torch.rand(())
        torch.rand((), device=device)
        states = [one.get_state() for one in generators]
        with torch.no_grad() if recorded else contextlib.nullcontext():
            first = function(*args, **kwargs)

        def again(args, kwargs):
            for one, state in zip(generators, states, strict=True):
                one.set_state(state)
            return function(*args, **kwargs)

        if recorded:
            leaves = [one.detach().requires_grad_() if one.is_floating_point() else one for one in given]
            # Who has no gradients says so, and ``gradients`` judges how.
            with contextlib.suppress(Exception), torch.enable_grad():
                return first, again(*tools.replaced(args, kwargs, given, leaves)).detach()
        return first, again(args, kwargs)

    return call


def _many(function, tools, times):
    """Let the call be made so many times; return how many different results there are."""

    def call(*args, **kwargs):
        found = (function(*args, **kwargs).detach().cpu().contiguous() for _ in range(times))
        # As bytes, which every dtype has.
        return torch.tensor(len({one.view(-1).view(torch.uint8).numpy().tobytes() for one in found}))

    return call


def _in_thread(function, tools, seed):
    """Let one other thread make the call twice, each time after ``torch.manual_seed(seed)``. Return both results."""

    def call(*args, **kwargs):
        found, raised = [], []
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def work():
            try:
                if device is not None:
                    torch.cuda.set_device(device)
                with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                    for _ in range(2):
                        torch.manual_seed(seed)
                        found.append(function(*args, **kwargs))
            # Raised again below.
            except BaseException as error:  # noqa: BLE001
                raised.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]
        return tuple(found)

    return call


def _batched(function, tools, randomness):
    """Let the call be made for each of two equal parts of a batch of ``torch.func.vmap(randomness=...)``. Return both
    results."""

    def call(*args, **kwargs):
        given = tools.operands(args, kwargs)

        def part(*tensors):
            args_of_part, kwargs_of_part = tools.replaced(args, kwargs, given, tensors)
            return function(*args_of_part, **kwargs_of_part)

        batches = [torch.stack([one, one]) for one in given]
        return tuple(one.clone() for one in torch.func.vmap(part, randomness=randomness)(*batches).unbind())

    return call


KINDS = {REPLAYED: _replayed, MANY: _many, THREAD: _in_thread, BATCHED: _batched}
"""As ``dispatcher_calls.KINDS``."""
