"""What runs came to, side by side."""
