"""Word vectors: word2vec training, the vectors and their file format, evaluation."""
