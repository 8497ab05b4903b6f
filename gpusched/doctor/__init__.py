"""The machine looked over (``machine``: everything but GPUs; ``gpus``: what the driver says), and a ``rehearsal`` judged."""
