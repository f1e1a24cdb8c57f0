"""Several processes: front ends that speak HTTP, one engine process, and the supervisor that starts both."""
