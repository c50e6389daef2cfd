"""Handwritten digits, learned from nothing: ``python -m examples.digits`` (it needs scikit-learn, for its images)."""
