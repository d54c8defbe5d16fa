"""Files: checkpoints, weights of others, traces, written whole or not at all; clocks and former weights in them."""
