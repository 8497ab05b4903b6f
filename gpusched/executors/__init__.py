"""The seam to what carries commands out: ``base`` has ``Executor``; ``local`` runs process groups on this machine."""
