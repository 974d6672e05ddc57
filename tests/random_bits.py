"""Random bits without a loop of XLA's for each draw: a function in C makes them, the same bits.

jax lowers every split and draw to a loop of five times four rounds, and XLA takes 14 ms to compile each of them: a
quarter of a program of control. In the tests' own processes, programs for one device call threefry.c instead, if a C
compiler is there. What users run, programs over several devices, what is exported and what tests start have jax's own.
test_random_bits.py compares the two.
"""

import ctypes
import pathlib
import subprocess
import tempfile

import jax
import jax.ffi
from jax._src.interpreters import mlir
from jax._src.lib import xla_client

NAME = "rl_jax_tests_threefry"
SOURCE = pathlib.Path(__file__).parent / "threefry.c"


def _compiled():
    """The capsule of the C function. Raises OSError or CalledProcessError if it cannot be compiled."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/threefry.so"
        command = ["cc", "-O2", "-shared", "-fPIC", "-I", jax.ffi.include_dir(), "-o", library, str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True)
        address = ctypes.cast(ctypes.CDLL(library).threefry, ctypes.c_void_p).value  # stays loaded without its file
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return capsule(address, b"xla._CUSTOM_CALL_TARGET", None)


def called(usual):
    """A lowering that calls the C function where a program is for one device, and otherwise is `usual`."""
    parameters = mlir.LoweringParameters()

    def lower(ctx, *words):
        module, out = ctx.module_context, ctx.avals_out[0]
        one = getattr(module.axis_context, "num_devices", 0) == 1
        if not one or tuple(module.platforms) != ("cpu",) or module.lowering_parameters != parameters or not out.size:
            return usual(ctx, *words)
        whole = [
            word
            if aval.shape == out.shape
            else mlir.broadcast_in_dim(ctx, word, out, broadcast_dimensions=range(out.ndim - aval.ndim, out.ndim))
            for word, aval in zip(words, ctx.avals_in, strict=True)
        ]
        types, rows_first = [mlir.aval_to_ir_type(module, out)] * 2, tuple(reversed(range(out.ndim)))
        call = mlir.custom_call(
            NAME,
            result_types=types,
            operands=whole,
            api_version=4,
            backend_config={},
            operand_layouts=[rows_first] * 4,  # without them XLA may give one word by columns, another by rows
            result_layouts=[rows_first] * 2,
        )
        return call.results

    return lower


def install() -> bool:
    """From here on in this process; whether it is so. What it needs is private to jax: without it, tests are slower."""
    try:
        from jax._src.random import threefry2x32

        usual = threefry2x32._threefry2x32_cpu_lowering_rule
        xla_client.register_custom_call_target(NAME, _compiled(), "cpu", 1)
    except (ImportError, AttributeError, OSError, subprocess.CalledProcessError):
        return False
    mlir.register_lowering(threefry2x32.threefry2x32_p, called(usual), platform="cpu")
    return True
