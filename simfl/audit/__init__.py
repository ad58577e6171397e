"""Attacks on runs, and lower bounds on their privacy loss, from what an attacker sees."""
