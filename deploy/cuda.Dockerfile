# Copus for NVIDIA GPUs, over an image with PyTorch 2.11 or newer for CUDA and nvcc of the same CUDA. Another base image is
# named by --build-arg BASE=... Only what is committed goes in:
#
#   git archive HEAD | docker build -t copus-cuda -f deploy/cuda.Dockerfile -
#   docker run --rm --gpus all --shm-size=1g -v "$PWD:/work" copus-cuda train my.toml --set train.device=cuda
#
# The program uses the image's own libtorch and NCCL, so the image stays as large as its base.
ARG BASE=pytorch/pytorch:2.11.0-cuda13.0-cudnn9-devel
FROM ${BASE}
WORKDIR /opt/copus/source
COPY . .
RUN python3 -m pip install --no-cache-dir 'nvidia-cudnn-frontend==1.32.*'
RUN export COPUS_GPU=cuda COPUS_TORCH_DIR="$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')/Torch" \
 && scripts/setup --build && scripts/build && cmake --install build --prefix /opt/copus && rm -rf build
ENV PATH="/opt/copus/bin:$PATH"
WORKDIR /work
ENTRYPOINT ["copus"]
