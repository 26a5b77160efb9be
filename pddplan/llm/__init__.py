"""Architecture of a language model: parameters, KV bytes, FLOPs, communication, in closed form."""
