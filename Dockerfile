# syntax=docker/dockerfile:1
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS build
# Where torch comes from: an index with CPU builds. PyPI's own wheel carries gigabytes of CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_CACHE_DIR=/var/cache/pip \
    PIP_DISABLE_PIP_VERSION_CHECK=1
# "serve,milvus" adds SearchService.
ARG EXTRAS=serve
WORKDIR /src
RUN python -m venv /opt/secateur
COPY constraints.txt ./
RUN --mount=type=cache,target=/var/cache/pip \
    /opt/secateur/bin/pip install --no-deps --index-url "${TORCH_INDEX}" \
    "$(grep '^torch==' constraints.txt)"
COPY . .
RUN --mount=type=cache,target=/var/cache/pip \
    /opt/secateur/bin/pip install -c constraints.txt ".[${EXTRAS}]"

FROM python:${PYTHON_VERSION}-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin secateur
COPY --from=build /opt/secateur /opt/secateur
# Nothing is downloaded: the model lies in the package. torch insists on a folder for temporary
# files, and /dev/shm is the one that stays writable under a read-only root.
ENV PATH=/opt/secateur/bin:${PATH} \
    GRPC_VERBOSITY=ERROR \
    HF_HUB_OFFLINE=1 \
    HOME=/nonexistent \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TMPDIR=/dev/shm
WORKDIR /
USER 10001:10001
EXPOSE 50051
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["secateur", "health"]
ENTRYPOINT ["secateur"]
CMD ["serve", "--host", "0.0.0.0"]
