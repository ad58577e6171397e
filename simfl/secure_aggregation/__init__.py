"""Secure aggregation, simulated: the server adds up masked fixed-point uploads and learns nothing but their sum."""
