"""Text and only text, on its way to a model and back.

    messages -> ChatTemplate -> prompt
    bytes -> Utf8Stream -> StopStrings -> ThoughtSplitter -> ("thought", str) | ("answer", str)

The streams are fed pieces of any size and release what is certain.  What they have released never
depends on how the text was cut into pieces, so a reply reads the same whether its tokens come one
by one or ten at a time.  Tokens, models, caches and terminals are unknown here.
"""
