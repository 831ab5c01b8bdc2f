from rl4llm.core.lazy import attach; __getattr__, __dir__, __all__ = attach(__name__)
