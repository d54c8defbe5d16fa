"""Allowed words of arguments: types for type checkers, and the words themselves."""

from __future__ import annotations

from typing import Literal, get_args

Loss = Literal["cross_entropy", "binary_cross_entropy", "mean_squared_error"]
InputType = Literal["float32", "int32"]
Backend = Literal["onednn", "native"]
ConvAlgorithm = Literal["auto", "direct", "winograd"]
DType = Literal["float32", "bfloat16", "auto"]
Precision = Literal["exact", "fast"]

LOSSES: tuple[Loss, ...] = get_args(Loss)
INPUT_TYPES: tuple[InputType, ...] = get_args(InputType)
BACKENDS: tuple[Backend | None, ...] = (None, *get_args(Backend))
CONV_ALGORITHMS: tuple[ConvAlgorithm, ...] = get_args(ConvAlgorithm)
DTYPES: tuple[DType, ...] = get_args(DType)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
