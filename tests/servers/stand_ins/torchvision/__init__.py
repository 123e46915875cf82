"""Takes the place of torchvision, which has no build for this torch. SGLang imports it for images."""

import enum
import sys
import types

__version__ = "0.0.0"
__path__ = []


class InterpolationMode(enum.Enum):
    """The names that image processors read at import."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def _any_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


for _name in (
    "io",
    "ops",
    "transforms",
    "transforms.functional",
    "transforms.v2",
    "transforms.v2.functional",
):
    _module = types.ModuleType(f"{__name__}.{_name}")
    _module.__path__ = []
    _module.__getattr__ = _any_class
    _module.InterpolationMode = InterpolationMode
    sys.modules[_module.__name__] = _module
    _parent, _, _leaf = _module.__name__.rpartition(".")
    setattr(sys.modules[_parent], _leaf, _module)
__getattr__ = _any_class
