"""Controllers that change a model's structure while it trains, as hooks of the engine."""
