"""Register the operators with torch's dispatcher: ``torch.ops.ntops``."""

from ntops.library import registration

registration.register()
