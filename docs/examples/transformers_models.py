"""Compare models of Transformers, with random weights, inside and outside of ``ntops.torch.use()``.

``python docs/examples/transformers_models.py`` takes tiny models, on the CPU under the interpreter too; ``--large``
takes layers of the size of Llama 3 8B, for a GPU.
"""

import argparse
import time

import torch
import transformers

import ntops.torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def configurations(large):
    """The configuration of each model by name."""
    if large:
        sizes = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 8}
        sizes |= {"intermediate_size": 14336, "vocab_size": 32768, "head_dim": 128}
        gpt2 = {"n_embd": 2048, "n_head": 16, "n_layer": 8, "n_positions": 4096, "vocab_size": 32768}
    else:
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
        sizes |= {"intermediate_size": 128, "vocab_size": 96, "head_dim": 16}
        gpt2 = {"n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 96}

    ends = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    return {
        "llama": transformers.LlamaConfig(**sizes, **ends),
        "qwen3": transformers.Qwen3Config(**sizes, **ends),
        "gpt2": transformers.GPT2Config(**gpt2, **ends),
    }


def make(configuration, dtype):
    """The model with random weights."""
    torch.manual_seed(0)

    with torch.device(DEVICE):
        model = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation="sdpa", dtype=dtype)

    return model.eval()


def seconds(function, repeats):
    """The median time of a call, and what it returned."""
    times = []

    for _ in range(repeats):
        if DEVICE == "cuda":
            torch.cuda.synchronize()

        start = time.perf_counter()
        result = function()

        if DEVICE == "cuda":
            torch.cuda.synchronize()

        times.append(time.perf_counter() - start)

    return sorted(times)[repeats // 2], result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--models", nargs="+", default=["llama", "qwen3", "gpt2"])
    parser.add_argument("--prompt", type=int, default=12, help="tokens of each of the two prompts")
    parser.add_argument("--new", type=int, default=4, help="tokens to generate")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()

    for name, configuration in configurations(options.large).items():
        if name not in options.models:
            continue

        model = make(configuration, getattr(torch, options.dtype))
        prompt = torch.randint(1, configuration.vocab_size, (2, options.prompt), device=DEVICE)
        ids = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}

        with torch.no_grad():

            def generate():
                return model.generate(**ids, max_new_tokens=options.new, do_sample=False)  # noqa: B023

            def run():
                return model(**ids).logits  # noqa: B023

            rows = {}

            for label in ("torch", "ntops"):
                with ntops.torch.use(ops=() if label == "torch" else None):
                    # The first calls compile.
                    seconds(run, 1), seconds(generate, 1)
                    rows[label] = seconds(run, options.repeats), seconds(generate, options.repeats)

        (prefill, logits), (generation, tokens) = rows["ntops"]
        (torch_prefill, torch_logits), (torch_generation, torch_tokens) = rows["torch"]
        differs = (logits.float() - torch_logits.float()).abs().max() / torch_logits.float().abs().max()
        count = tokens.numel() - prompt.numel()
        print(f"{name} {options.dtype}: logits differ by at most {differs:.1e} of the largest", end="; ")
        print(f"{(tokens == torch_tokens).sum() - prompt.numel()} of {count} new tokens are the same")
        print(f"  prompt: {prompt.numel() / torch_prefill:,.0f} tokens/s with torch, ", end="")
        print(f"{prompt.numel() / prefill:,.0f} with ntops; generated: ", end="")
        print(f"{count / torch_generation:,.0f} and {count / generation:,.0f} tokens/s")
        print(ntops.torch.use.log())


if __name__ == "__main__":
    main()
