"""What a model costs: parameters, FLOPs under named conventions, KV-cache bytes. No torch."""
