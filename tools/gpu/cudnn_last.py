"""A command of hybridlab with cuDNN as torch's last attention backend: `python tools/gpu/cudnn_last.py bench …`."""

from hybridlab.attention import kernels
from hybridlab.lab.cli.main import run

chosen = kernels.cuda_backends


def cudnn_last(*case):
    """The same backends, with cuDNN behind the others."""
    return tuple(sorted(chosen(*case), key=lambda backend: backend.name == "CUDNN_ATTENTION"))


if __name__ == "__main__":
    kernels.cuda_backends = cudnn_last
    run()
