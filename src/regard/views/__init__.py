"""Rendering: terminal, HTML, SVG and PNG."""
