"""Several processes: front ends that speak HTTP, one scheduler process, and the supervisor that starts both."""
