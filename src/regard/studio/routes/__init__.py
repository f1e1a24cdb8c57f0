"""The routes of the studio, one module for each group."""
