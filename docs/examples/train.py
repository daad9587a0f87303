"""Train a language model with torch and inside ``ntops.torch.use()``, and compare the two loss curves.

``python docs/examples/train.py`` trains a Llama of Transformers of 10 million parameters for 300 steps, for a GPU;
``--model plain`` takes one of torch.nn, and needs no Transformers. Both runs begin with the same weights and see the
same batches. The exit code is 1 where the losses of a step are further apart than the limit.
"""

import argparse
import contextlib
import copy
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import ntops.torch

LIMITS = {"float32": 0.01, "bfloat16": 0.02}
"""The largest distance of two losses, as a share of torch's."""
SUCCESSORS, ODDS = 4, (0.7, 0.15, 0.1, 0.05)
"""How many tokens may follow a token, and how likely each is. A model that knows them has a loss of 0.91."""


class Block(nn.Module):
    """A layer as Llama has it."""

    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.head_dim = width // heads
        inner = kv_heads * self.head_dim
        self.norm, self.mlp_norm = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden(width), bias=False) for _ in range(2))
        self.down = nn.Linear(hidden(width), width, bias=False)

    def forward(self, x, cos, sin):
        h = self.norm(x)
        query, key, value = (
            part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part in (self.query(h), self.key(h), self.value(h))
        )
        query, key = rotated(query, cos, sin), rotated(key, cos, sin)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Plain(nn.Module):
    """A Llama of torch.nn: tokens (B, T) to logits (B, T, vocabulary)."""

    def __init__(self, options):
        super().__init__()
        heads, kv_heads = options.heads
        self.head_dim = options.width // heads
        self.embedding = nn.Embedding(options.vocabulary, options.width)
        self.layers = nn.ModuleList(Block(options.width, heads, kv_heads) for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.width, eps=1e-6)
        self.head = nn.Linear(options.width, options.vocabulary, bias=False)

        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens)
        places = torch.arange(0, self.head_dim, 2, device=tokens.device) / self.head_dim
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] / 10000**places
        cos, sin = (part.repeat(1, 2).to(x.dtype) for part in (angles.cos(), angles.sin()))

        for layer in self.layers:
            x = layer(x, cos, sin)

        return self.head(self.norm(x))


def rotated(x, cos, sin):
    """The heads (..., T, D) rotated by the angles of their positions (T, D)."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def hidden(width):
    """The width of the MLP, 8/3 of the model's, in whole steps of 32."""
    return -(-8 * width // 96) * 32


class Llama(nn.Module):
    """A Llama of Transformers."""

    def __init__(self, options):
        import transformers

        super().__init__()
        heads, kv_heads = options.heads
        configuration = transformers.LlamaConfig(
            hidden_size=options.width,
            intermediate_size=hidden(options.width),
            num_hidden_layers=options.layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            vocab_size=options.vocabulary,
            max_position_embeddings=options.length,
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=None,
            use_cache=False,
        )
        self.model = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation="sdpa")

    def forward(self, tokens):
        return self.model(input_ids=tokens).logits


MODELS = {"llama": Llama, "plain": Plain}


def text(options):
    """Token sequences of all steps, (steps, batch, length + 1): each token has ``SUCCESSORS`` that may follow it."""
    generator = torch.Generator().manual_seed(options.seed)
    following = torch.randint(options.vocabulary, (options.vocabulary, SUCCESSORS), generator=generator)
    sequences = options.steps * options.batch
    chosen = torch.multinomial(torch.tensor(ODDS), sequences * options.length, replacement=True, generator=generator)
    columns = [torch.randint(options.vocabulary, (sequences,), generator=generator)]

    for choice in chosen.view(options.length, sequences):
        columns.append(following[columns[-1], choice])

    return torch.stack(columns, -1).view(options.steps, options.batch, -1)


def losses(model, batches, options, block):
    """The loss of each step, in a block of its own: forward and backward pass, and the optimizer's step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.95), weight_decay=0.1)
    mixed = options.autocast and torch.autocast(torch.device(options.device).type, torch.bfloat16)
    found = []

    for tokens in batches:
        with block():
            with mixed or contextlib.nullcontext():
                logits = model(tokens[:, :-1])

            loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        found.append(loss.detach())

    return torch.stack(found).tolist()


def distances(curve, expected):
    """How far each loss is from torch's, as a share of torch's."""
    return [abs(one - other) / other for one, other in zip(curve, expected, strict=True)]


def parsed(arguments):
    """The options, whole."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=LIMITS, default="float32", help="of weights and activations")
    parser.add_argument("--autocast", action="store_true", help="float32 weights, bfloat16 by torch.autocast")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--heads", type=int, nargs=2, default=(5, 1), metavar=("HEADS", "KV_HEADS"))
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rate", type=float, default=6e-4, help="the learning rate")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the text")
    parser.add_argument("--limit", type=float, help="the largest distance; default: 0.01, and 0.02 of bfloat16")
    options = parser.parse_args(arguments)

    if options.autocast and options.dtype != "float32":
        parser.error("--autocast is for weights of float32")

    if options.limit is None:
        options.limit = LIMITS["bfloat16" if options.autocast else options.dtype]

    return options


def main(arguments=None):
    """The exit code: 0 where all losses are within the limit of torch's, else 1."""
    options = parsed(arguments)
    batches = text(options).to(options.device)
    torch.manual_seed(options.seed)
    model = MODELS[options.model](options).to(options.device, getattr(torch, options.dtype))
    count = sum(parameter.numel() for parameter in model.parameters())
    dtype = "bfloat16 by autocast" if options.autocast else options.dtype
    print(f"{options.model}, {count:,} parameters, {dtype}, {options.steps} steps on {options.device}", flush=True)
    curves = {}

    for name, block in (("torch", contextlib.nullcontext), ("ntops", ntops.torch.use)):
        start = time.perf_counter()
        curves[name] = losses(copy.deepcopy(model), batches, options, block)
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)

    print("what the last step called:")
    print(ntops.torch.use.log())
    found = distances(curves["ntops"], curves["torch"])
    print(f"{'step':>6}{'torch':>12}{'ntops':>12}{'distance':>12}")

    for step in sorted({*range(0, options.steps, max(1, options.steps // 20)), options.steps - 1}):
        print(f"{step:6}{curves['torch'][step]:12.5f}{curves['ntops'][step]:12.5f}{found[step]:12.2e}")

    # NaN is within no limit.
    within = [one <= options.limit for one in found]
    worst = within.index(False) if not all(within) else max(range(len(found)), key=found.__getitem__)
    verb = "is" if all(within) else "is not"
    print(f"the largest distance, {found[worst]:.2e} at step {worst}, {verb} within {options.limit:g}")
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
