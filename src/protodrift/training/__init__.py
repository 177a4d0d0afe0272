"""One task: train the network, let penalties and exemplars take what they keep, move the statistics, calibrate."""
