"""Controllers: hooks of the engine that change a model's structure while it trains."""
