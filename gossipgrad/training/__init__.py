"""The layer between gossipgrad.Trainer and the compiled core: replicas, the loop of fit, evaluation, checkpoints."""
