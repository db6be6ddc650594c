"""Pictures: which piece is wanted, and how it is decoded."""
