# syntax=docker/dockerfile:1
# The agent in a container. With NVIDIA's container runtime it monitors the GPUs of the container; docs/install.md lists
# what a container hides. --build-arg EXTRAS=[probe] adds torch, which is several GB.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
ARG EXTRAS=""
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements/constraints.txt requirements/
COPY gpumon gpumon
COPY simulator simulator
ARG REVISION=""
RUN [ -z "$REVISION" ] || echo "$REVISION" > gpumon/REVISION
RUN python -m venv /opt/gpumon \
 && /opt/gpumon/bin/pip install --no-cache-dir -c requirements/constraints.txt setuptools \
 && /opt/gpumon/bin/pip install --no-cache-dir -c requirements/constraints.txt --no-build-isolation ".${EXTRAS}" h2 ./simulator

FROM python:${PYTHON}-slim-bookworm
RUN groupadd --system --gid 17400 gpumon \
 && useradd --system --uid 17400 --gid gpumon --home-dir /var/lib/gpumon --shell /usr/sbin/nologin gpumon \
 && install -d -o gpumon -g gpumon -m 0750 /var/lib/gpumon
COPY --from=build /opt/gpumon /opt/gpumon
# NVML needs the capability utility, the probe needs compute.
ENV PATH=/opt/gpumon/bin:$PATH \
    STATE_DIRECTORY=/var/lib/gpumon \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER gpumon
VOLUME /var/lib/gpumon
EXPOSE 17400
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:17400/-/healthy', timeout=4)"]
ENTRYPOINT ["gpumon"]
CMD ["serve"]
