"""One Python function per verb: `regard.train` is what `regard train` calls."""
