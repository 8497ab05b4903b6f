"""The machine looked over: ``machine`` (everything but GPUs, with ``torchbuild``) and ``gpus`` (with ``checking``)."""
