"""Lightning on ringtune: the strategy ``ringtune``, and callbacks that every Trainer gets by itself.

``import ringtune.lightning`` registers the strategy for ``Trainer(strategy="ringtune")``. The callbacks come through
the entry points ``lightning.pytorch.callbacks_factory`` and ``lightning.fabric.callbacks_factory``, with no line in the
script.
"""

from lightning.pytorch.strategies import StrategyRegistry

from ringtune.lightning.strategy import RingtuneStrategy

__all__ = ["RingtuneStrategy"]

RingtuneStrategy.register_strategies(StrategyRegistry)
