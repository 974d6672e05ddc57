"""Between numpy and torch: every array is computed with in float64, every answer is numpy."""

import warnings

import numpy as np
import torch


def tensor(array):
    """A float64 tensor with its own memory (verl writes into its arguments), or None for None."""
    return None if array is None else torch.tensor(np.array(array, np.float64))


def call(function, *args, **kwargs):
    """function(*args, **kwargs), its constants in float64 too; its warnings dropped, since the tests raise on them."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args, **kwargs)
    finally:
        torch.set_default_dtype(dtype)


def value_and_gradient(function, array):
    """(value, gradient) of a function of one array: its value as a float or numpy array, the gradient of its sum."""
    leaf = tensor(array).requires_grad_()
    value = call(function, leaf)
    # A loss that does not depend on the array (everything clipped away in place) has no graph: its gradient is 0.
    gradient = torch.autograd.grad(value.sum(), leaf, allow_unused=True)[0] if value.requires_grad else None
    gradient = np.zeros(leaf.shape) if gradient is None else gradient.numpy()
    value = value.detach().numpy()
    return (float(value) if value.ndim == 0 else value), gradient
