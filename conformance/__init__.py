"""The harness: cases as data, oracles, bounds, checks, and what can be judged with them."""
