"""Takes the place of SGLang's GPU kernels on a machine without a GPU: imported there, and never to be run."""

__version__ = "0.4.10"  # what SGLang asks for


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*args, **options):
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU")

    return kernel
