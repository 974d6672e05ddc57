"""Peak FLOP/s of devices by the kind that jax reports: dense bfloat16 products (no sparsity), as the makers state them.

CPUs are left out on purpose: a device that is not in the table has no MFU unless log.peak_flops is set.
"""

_TPU = "cloud.google.com/tpu/docs/"
_NVIDIA = "NVIDIA datasheet, half of the figure with sparsity: nvidia.com/en-us/data-center/"
# device kind -> (FLOP/s, source). jax reports the first name of each TPU; libtpu has used the second, too.
PEAKS: dict[str, tuple[float, str]] = {
    "TPU v4": (275e12, _TPU + "v4"),
    "TPU v5 lite": (197e12, _TPU + "v5e"),
    "TPU v5e": (197e12, _TPU + "v5e"),
    "TPU v5": (459e12, _TPU + "v5p"),
    "TPU v5p": (459e12, _TPU + "v5p"),
    "TPU v6 lite": (918e12, _TPU + "v6e"),
    "TPU v6e": (918e12, _TPU + "v6e"),
    "NVIDIA A100-SXM4-40GB": (312e12, _NVIDIA + "a100"),
    "NVIDIA A100-SXM4-80GB": (312e12, _NVIDIA + "a100"),
    "NVIDIA A100-PCIE-40GB": (312e12, _NVIDIA + "a100"),
    "NVIDIA A100 80GB PCIe": (312e12, _NVIDIA + "a100"),
    "NVIDIA H100 80GB HBM3": (989.4e12, _NVIDIA + "h100 (SXM)"),
    "NVIDIA H100 PCIe": (756e12, _NVIDIA + "h100 (PCIe)"),
    "NVIDIA H100 NVL": (835e12, _NVIDIA + "h100 (NVL)"),
    "NVIDIA H200": (989.4e12, _NVIDIA + "h200 (SXM)"),
    "NVIDIA H200 NVL": (835.5e12, _NVIDIA + "h200 (NVL)"),
    "NVIDIA GH200 480GB": (989.4e12, _NVIDIA + "grace-hopper-superchip"),
}


def peak_flops(kind: str, given: float = 0.0) -> float:
    """The bfloat16 FLOP/s of one device; 0 if nobody states it.

    Args:
      kind: jax.Device.device_kind.
      given: config.log.peak_flops, which is taken instead if it is not 0.
    """
    return given or PEAKS.get(kind, (0.0, ""))[0]
