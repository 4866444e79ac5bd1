"""``import ringtune.as_horovod``: from here on ``import horovod.torch`` gives ringtune.

``ringtune run --as-horovod`` does the same for a script that nobody may change.
"""

from ringtune.alias.finder import install

__all__ = ["install"]

install()
