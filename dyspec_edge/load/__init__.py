"""From a configuration to a decoder that is ready: files checked, models placed, prices measured.

What is kept between runs is kept here, too.  The room knows files and decoders, but no text.
"""
