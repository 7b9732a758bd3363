"""Host-side evaluation of the same weights: exact integers, and fixed point of any precision."""

__all__: list[str] = []
