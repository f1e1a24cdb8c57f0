"""Generation: requests, one search for all of them, the choice of tokens, and the engines that take its steps."""
