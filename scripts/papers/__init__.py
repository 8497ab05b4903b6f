"""The papers' experiments, each as a study: what to simulate, and what to say of it. Run by ``scripts/figures.py``."""
