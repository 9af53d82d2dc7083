"""From a configuration to conversations: files checked, weights and contexts opened, prices known.

What is kept between runs is kept here, too.  The room knows files and decoding, but no text.
"""
