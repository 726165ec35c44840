"""One module, one claim of a paper; `python -m experiments` lists them."""
