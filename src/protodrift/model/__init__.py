"""A model on disk and what people do with it: learn, predict, evaluate, forget, export."""
