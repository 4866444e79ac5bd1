"""The module that ``import horovod`` finds when PYTHONPATH names this folder; it hands over to ringtune."""

import importlib
import sys

# The entry goes, so that the next import asks the finder for the name.
del sys.modules[__name__]
importlib.import_module("ringtune.as_horovod")
sys.modules[__name__] = importlib.import_module("horovod")
