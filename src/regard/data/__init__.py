"""From files, or from nothing, to batches of token ids: text, examples, tokens, corpus, batches, generated."""
