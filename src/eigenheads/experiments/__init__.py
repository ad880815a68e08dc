"""Papers, reproduced: parameters, simulation, claims, drawing."""

__all__: list[str] = []
