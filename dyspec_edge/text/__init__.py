"""Text and only text: chat templates, characters, stop strings, thoughts.

Tokens, models and caches are unknown here.
"""
