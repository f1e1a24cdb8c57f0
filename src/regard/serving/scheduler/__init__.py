"""The thread that owns the models of a device: its queue of jobs, and their searches and batches."""
