"""What every other folder may use: configuration, labels, seeds, files, progress, the machine; it imports none."""
