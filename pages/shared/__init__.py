"""Pieces every page uses: the settings bar, error display, downloads, links between pages."""
