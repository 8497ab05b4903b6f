"""torchvision's models, transforms and data sets, also where its compiled operators do not fit the installed torch.

A torchvision built for CUDA cannot load its operators beside a CPU-only torch. ``import torchvision`` then ends with
"operator torchvision::nms does not exist", although nothing but detection models needs them. Import its parts from here
and it works in both cases:

    from vision_ops import models, transforms

Where the operators load, this module does nothing. Recipes preload it, so that trials find torchvision imported.
"""

import sys

import torch


def import_torchvision():
    """Import torchvision, with empty declarations in the place of operators that are not there."""
    try:
        import torchvision
    except RuntimeError:
        if hasattr(torch.ops.torchvision, "nms"):  # the operators are there: it is something else
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]  # what the failed import left half done
        declared = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            declared.define(
                f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        import torchvision

        torchvision.declared_operators = declared  # declarations live as long as this object
    return torchvision


import_torchvision()

from torchvision import datasets, models, transforms  # noqa: E402

__all__ = ["datasets", "models", "transforms"]
