"""Plant a wrong kernel in one layer of a model of Transformers, and ask a shadow which it is: 20 times.

``python docs/examples/shadowed_transformer.py``, after ``pip install 'ntops[shadow]' transformers==5.17.0``. The models
have 12 layers of the shapes of Llama, Qwen3 and GPT-2, and random weights.
"""

import itertools
import random

import torch
import transformers
from torch.overrides import TorchFunctionMode

import conformance
from conformance.live_calls import named

LAYERS = 12
SIZES = {
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "head_dim": 16,
}
SIZES |= {"num_hidden_layers": LAYERS, "vocab_size": 131, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
GPT2 = {"n_embd": 96, "n_head": 6, "n_layer": LAYERS, "vocab_size": 131, "bos_token_id": 0, "eos_token_id": None}


def last_element_missing(result):
    """The last element is not written."""
    result.view(-1)[-1] = -1.0
    return result


def tail_missing(result):
    """The columns after the last whole tile of 32 are zeros."""
    result[..., result.shape[-1] // 32 * 32 - 1 :] = 0
    return result


def by_bfloat16(result):
    """A result of float32 goes through bfloat16."""
    return result.bfloat16().to(result.dtype)


def cut_off(result):
    """Half of the bits are cut off."""
    return (result.view(torch.int32) >> 12 << 12).view(torch.float32)


def next_row(result):
    """Each row is the one before it."""
    return result.roll(1, -2)


MISTAKES = (last_element_missing, tail_missing, by_bfloat16, cut_off, next_row)
OPERATORS = {
    "llama": ("linear", "scaled_dot_product_attention", "silu", "mul", "add", "rsqrt", "neg"),
    "qwen3": ("linear", "scaled_dot_product_attention", "silu", "mul", "add", "mean"),
    "gpt2": ("addmm", "scaled_dot_product_attention", "layer_norm", "tanh", "mul"),
}


class Planted(TorchFunctionMode):
    """Makes a mistake in the calls of an operator, in one layer."""

    def __init__(self, layers, number, operator, mistake):
        super().__init__()
        self.here, self.operator, self.mistake = False, operator, mistake
        self.hooks = [
            layers[number].register_forward_pre_hook(lambda *_: setattr(self, "here", True)),
            layers[number].register_forward_hook(lambda *_: setattr(self, "here", False)),
        ]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result, which = func(*args, **kwargs or {}), named(func)

        if not self.here or which is None or which.op != self.operator:
            return result

        return self.mistake(result.clone(memory_format=torch.contiguous_format))


def plants(count):
    """Models, layers, operators and mistakes, each pair of operator and mistake once."""
    chance = random.Random(0)
    pairs = [(m, op, mistake) for m, ops in OPERATORS.items() for op, mistake in itertools.product(ops, MISTAKES)]
    # One number in a row has no tail, and no other row.
    pairs = [one for one in pairs if one[1] not in ("rsqrt", "mean") or one[2] in (by_bfloat16, cut_off)]
    return [(*one, chance.randrange(LAYERS)) for one in chance.sample(pairs, count)]


@torch.no_grad()
def main(count=20):
    torch.manual_seed(0)
    configurations = {
        "llama": transformers.LlamaConfig(**SIZES),
        "qwen3": transformers.Qwen3Config(**SIZES),
        "gpt2": transformers.GPT2Config(**GPT2),
    }
    models = {
        name: transformers.AutoModelForCausalLM.from_config(one, attn_implementation="sdpa").eval()
        for name, one in configurations.items()
    }
    layers = {name: model.transformer.h if name == "gpt2" else model.model.layers for name, model in models.items()}
    tokens, right = torch.randint(131, (2, 19)), 0

    for name, model in models.items():
        with conformance.shadow(model, report=None) as report:
            model(tokens)
        print(
            f"{name}, right: {report.judged.total()} of {report.calls.total()} calls judged, "
            f"{len(report.failures)} wrong"
        )
        assert not report.failures, report

    for name, operator, mistake, number in plants(count):
        planted = Planted(layers[name], number, operator, mistake)

        with planted, conformance.shadow(models[name], report=None) as report:
            models[name](tokens)

        for hook in planted.hooks:
            hook.remove()

        found = {(f.layer, f.op) for f in report.failures}
        wanted = {"linear": ("mm", "addmm")}.get(operator, (operator,))
        is_right = bool(found) and all(layer == number and op in wanted for layer, op in found)
        right += is_right
        first = report.first
        said = f"{first.module}: {first.op}" if first else "nothing"
        print(
            f"{name}, layer {number}, {operator}, {mistake.__name__}: {said}{'' if is_right else ' - WRONG'}",
            flush=True,
        )

    print(f"{right} of {count} found, each the operator in the layer where it is and nothing else")
    return right == count


if __name__ == "__main__":
    raise SystemExit(not main())
