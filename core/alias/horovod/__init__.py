"""Found by ``import horovod`` when this folder stands in PYTHONPATH: gives way to ringtune."""

import importlib
import sys

# Out of the way, so that the finder is asked for the name.
del sys.modules[__name__]
importlib.import_module("ringtune.as_horovod")
sys.modules[__name__] = importlib.import_module("horovod")
