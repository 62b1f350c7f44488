"""The cost of a model: parameters, FLOPs under named conventions, KV-cache bytes. Without torch."""
