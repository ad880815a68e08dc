"""Tour: a narrated demo whose numbers are all measured while it runs."""
