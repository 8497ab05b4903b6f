"""The machine looked over: ``machine`` (everything but GPUs) and ``gpus`` (what the driver says)."""
