"""Dense layers between a features extractor and the memory."""

from __future__ import annotations

from typing import Any

import torch as th
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, create_mlp
from torch import nn

from thrust_pomdp.arguments import check_count
from thrust_pomdp.errors import ArgumentError

#: ``net_arch`` as users write it.
NetArch = list[int] | dict[str, list[int]] | None


class Encoder(BaseFeaturesExtractor):
    """A features extractor with dense layers behind it, each with its activation.

    >>> from gymnasium import spaces
    >>> from stable_baselines3.common.torch_layers import FlattenExtractor
    >>> encoder = Encoder(FlattenExtractor(spaces.Box(-1, 1, (3,))), [64, 32], nn.Tanh)
    >>> encoder.features_dim, encoder(th.zeros(5, 3)).shape
    (32, torch.Size([5, 32]))

    :param extractor: what comes first
    :param sizes: units of each layer
    :param activation_fn: the activation
    """

    def __init__(
        self, extractor: BaseFeaturesExtractor, sizes: list[int], activation_fn: type[nn.Module]
    ) -> None:
        super().__init__(extractor._observation_space, sizes[-1])
        self.extractor = extractor
        # SB3 takes the last size for an output layer, without an activation.
        layers = create_mlp(int(extractor.features_dim), sizes[-1], sizes[:-1], activation_fn)
        self.layers = nn.Sequential(*layers, activation_fn())

    def forward(self, observations: Any) -> th.Tensor:
        """Extract and encode."""
        encoded: th.Tensor = self.layers(self.extractor(observations))
        return encoded


def split_net_arch(net_arch: NetArch) -> tuple[list[int], NetArch]:
    """Part the encoder's sizes from those of the heads.

    >>> split_net_arch({"encoder": [64], "pi": [32]})
    ([64], {'pi': [32]})

    :param net_arch: as given to the policy
    :return: sizes of the encoder's layers, and SB3's ``net_arch``
    :raises ValueError: naming the key or the size that cannot be
    """
    if net_arch is not None and not isinstance(net_arch, (dict, list, tuple)):
        raise ArgumentError(
            f"net_arch must be a list of sizes, or a dict of lists, got {net_arch!r}"
        )
    if not isinstance(net_arch, dict):
        # SB3 unpacks a dict in a list, after the encoder has been looked for.
        if net_arch and any(isinstance(part, dict) and "encoder" in part for part in net_arch):
            raise ValueError(f"net_arch must be a dict of lists to have an encoder, got {net_arch}")
        return [], None if net_arch is None else [_unpacked(part) for part in net_arch]
    for key, sizes in net_arch.items():
        if key not in ("encoder", "pi", "vf"):
            raise ValueError(f"net_arch takes the keys 'encoder', 'pi' and 'vf', got {key!r}")
        if not isinstance(sizes, (list, tuple)):
            raise ValueError(f"net_arch[{key!r}] must be a list of sizes, got {sizes!r}")
    checked = {key: _sizes(f"net_arch[{key!r}]", sizes) for key, sizes in net_arch.items()}
    encoder = checked.pop("encoder", [])
    return encoder, checked


def _unpacked(part: Any) -> Any:
    """Check an entry of a list: a size, or the dict of the heads, which SB3 unpacks."""
    return split_net_arch(part)[1] if isinstance(part, dict) else check_count("net_arch", part)


def _sizes(name: str, sizes: list[int]) -> list[int]:
    return [check_count(name, size) for size in sizes]
