"""What the engines are measured against."""

__all__: list[str] = []
