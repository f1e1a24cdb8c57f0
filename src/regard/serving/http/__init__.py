"""From bytes to requests and back: the application, its limits, keys, errors and metrics."""
