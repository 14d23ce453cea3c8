"""Adapters: trained surgery modules on disk, and on a live model."""
