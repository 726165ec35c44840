"""The written pages of results: templates, and the values, tables and figures in them."""
