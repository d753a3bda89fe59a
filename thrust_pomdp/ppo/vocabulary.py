"""What files of models may name: a written-out table, and torch's tensors."""

from __future__ import annotations

from typing import Any

import torch as th
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    MultiInputActorCriticPolicy,
)
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import (
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from torch import nn, optim

from thrust_pomdp.ppo.asymmetric_policy import AsymmetricLstmPolicy
from thrust_pomdp.ppo.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from thrust_pomdp.ppo.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from thrust_pomdp.recurrent.gtrxl import GTrXL
from thrust_pomdp.recurrent.lru import LRU
from thrust_pomdp.recurrent.min_gru import MinGRU
from thrust_pomdp.safe_values import MARK, SPACES, Kind, NotDataError, Reader, Vocabulary, Writer
from thrust_pomdp.wrappers.blank_symbols import SymbolBox

_MEMORIES = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN": nn.RNN,
    "GTrXL": GTrXL,
    "MinGRU": MinGRU,
    "LRU": LRU,
}
_ACTIVATIONS = {
    "CELU": nn.CELU,
    "ELU": nn.ELU,
    "GELU": nn.GELU,
    "Hardshrink": nn.Hardshrink,
    "Hardsigmoid": nn.Hardsigmoid,
    "Hardswish": nn.Hardswish,
    "Hardtanh": nn.Hardtanh,
    "Identity": nn.Identity,
    "LeakyReLU": nn.LeakyReLU,
    "LogSigmoid": nn.LogSigmoid,
    "Mish": nn.Mish,
    "PReLU": nn.PReLU,
    "RReLU": nn.RReLU,
    "ReLU": nn.ReLU,
    "ReLU6": nn.ReLU6,
    "SELU": nn.SELU,
    "SiLU": nn.SiLU,
    "Sigmoid": nn.Sigmoid,
    "Softplus": nn.Softplus,
    "Softshrink": nn.Softshrink,
    "Softsign": nn.Softsign,
    "Tanh": nn.Tanh,
    "Tanhshrink": nn.Tanhshrink,
}
_OPTIMIZERS = {
    "ASGD": optim.ASGD,
    "Adadelta": optim.Adadelta,
    "Adagrad": optim.Adagrad,
    "Adam": optim.Adam,
    "AdamW": optim.AdamW,
    "Adamax": optim.Adamax,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "RMSprop": optim.RMSprop,
    "RMSpropTFLike": RMSpropTFLike,
    "SGD": optim.SGD,
}
_EXTRACTORS = {
    "CombinedExtractor": CombinedExtractor,
    "FlattenExtractor": FlattenExtractor,
    "NatureCNN": NatureCNN,
}
_OF_SB3 = {
    "ActorCriticCnnPolicy": ActorCriticCnnPolicy,
    "ActorCriticPolicy": ActorCriticPolicy,
    "DictRolloutBuffer": DictRolloutBuffer,
    "MultiInputActorCriticPolicy": MultiInputActorCriticPolicy,
    "RolloutBuffer": RolloutBuffer,
}
#: What networks are made of.
PARTS = {**_MEMORIES, **_ACTIVATIONS, **_OPTIMIZERS, **_EXTRACTORS}


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"must be a number, got {str(value)[:80]}")
    return value


def _schedule(value_schedule: Any) -> FloatSchedule:
    if not callable(value_schedule):
        raise ValueError(f"must be a schedule, got {str(value_schedule)[:80]}")
    return FloatSchedule(value_schedule)


def _linear(start: Any, end: Any, end_fraction: Any) -> LinearSchedule:
    return LinearSchedule(_number(start), _number(end), _number(end_fraction))


_SCHEDULES = {
    "FloatSchedule": Kind(
        FloatSchedule, lambda made: {"value_schedule": made.value_schedule}, _schedule
    ),
    "ConstantSchedule": Kind(
        ConstantSchedule, lambda made: {"val": made.val}, lambda val: ConstantSchedule(_number(val))
    ),
    "LinearSchedule": Kind(
        LinearSchedule,
        lambda made: {"start": made.start, "end": made.end, "end_fraction": made.end_fraction},
        _linear,
    ),
}


#: An array of it, so that the space is no bigger than the file.
_SYMBOLS = Kind(
    SymbolBox,
    lambda space: {"high": space.high},
    lambda high: SymbolBox(int(high.max()) + 1, high.shape),
)

#: What files of any model may name.
MODELS = Vocabulary({**PARTS, **_OF_SB3}, {**SPACES, **_SCHEDULES, "SymbolBox": _SYMBOLS})
#: What those of a ``RecurrentPPO`` may.
RECURRENT = MODELS.extended(
    {
        "AsymmetricLstmPolicy": AsymmetricLstmPolicy,
        "CnnLstmPolicy": CnnLstmPolicy,
        "MlpLstmPolicy": MlpLstmPolicy,
        "MultiInputLstmPolicy": MultiInputLstmPolicy,
        "RecurrentDictRolloutBuffer": RecurrentDictRolloutBuffer,
        "RecurrentRolloutBuffer": RecurrentRolloutBuffer,
    }
)


class ModelWriter(Writer):
    """Writes tensors too; those that share their memory once."""

    def _write(self, value: Any, path: str, strict: bool) -> Any:
        if type(value) not in (th.Tensor, nn.Parameter):
            return super()._write(value, path, strict)
        tensor = value.detach()
        same = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.layout != th.strided or tensor.is_quantized or tensor.is_complex():
            raise NotDataError(f"torch.Tensor of {tensor.dtype}")
        extra = {}
        if tensor.dtype is th.bfloat16:  # which NumPy does not have
            tensor, extra = tensor.view(th.int16), {"dtype": "bfloat16"}
        array = tensor.cpu().contiguous().numpy()
        name = self.keep(array, path, same if array.size and same[0] else None)
        # Most are named as where they stand.
        return {MARK: "tensor", **extra, **({} if name == path else {"name": name})}


class ModelReader(Reader):
    """Reads tensors too; they are views of the file's content."""

    def _read_marked(self, mark: Any, parts: dict[str, Any], path: str) -> Any:
        if mark != "tensor":
            return super()._read_marked(mark, parts, path)
        tensor = th.from_numpy(self.array(parts.get("name", path), path))
        return tensor.view(th.bfloat16) if parts.get("dtype") == "bfloat16" else tensor
