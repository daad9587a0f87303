"""What to try: Hypothesis strategies that draw tensor arguments as data, and what makes tensors of them."""
