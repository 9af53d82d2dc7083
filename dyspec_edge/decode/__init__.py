"""The step loop and all that it stands on: trees, policies, verification, caches, prices.

Token ids only: the room knows neither files nor text nor loading.
"""
