"""The papers' experiments, each as a study: what to simulate, and how to draw it. Run by ``scripts/figures.py``."""
