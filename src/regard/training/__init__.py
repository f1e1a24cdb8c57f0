"""Training: the loop, losses, optimizers, schedules, distributed processes, run state."""
