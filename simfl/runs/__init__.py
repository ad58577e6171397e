"""What a run leaves on the disk, and a run as it lies there."""
