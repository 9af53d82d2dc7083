"""Model files: what they are, where they lie, where they come from.

Headers are read and files are fetched; nothing here loads a model or knows what decoding is.
"""
