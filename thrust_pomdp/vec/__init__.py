"""Vectorised environments for Stable-Baselines3, and what agents see of them."""
