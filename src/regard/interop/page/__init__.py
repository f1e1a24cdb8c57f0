"""One HTML file that runs a model: its graphs, weights and tokenizers, and a page that decodes in the browser."""
