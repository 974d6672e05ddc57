"""started/sitecustomize.py: what it changes is changed here, too, where conftest.py imports it."""

import types

from orbax.checkpoint._src.serialization import tensorstore_utils

from tests.started import sitecustomize


def test_checkpoints_do_not_wait_for_the_disk():
    assert tensorstore_utils._BASE_TS_CONTEXT["file_io_sync"] is False
    for use_ocdbt in (True, False):
        assert tensorstore_utils.get_ts_context(use_ocdbt=use_ocdbt)["file_io_sync"].to_json() is False


def test_another_version_of_orbax_or_jax_is_left_as_it_is():
    module = types.SimpleNamespace(other={})
    for change in (sitecustomize.leave_writing_to_the_kernel, sitecustomize.share_contexts):
        change(module)
    assert vars(module) == {"other": {}}
