# Terrella on CPUs: training, certificates, the web, the server.
#   docker build --file docker/cpu.Dockerfile --tag terrella:cpu .
#   docker run --rm --volume "$PWD/runs:/home/user/runs" terrella:cpu rlvr tiny_counter
FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE CHANGELOG.md CITATION.cff ./
COPY src src
COPY launch launch
RUN pip install --no-cache-dir build==1.6.1 && python -m build --wheel --outdir /dist

FROM python:3.11-slim-bookworm
# Chromium and EGL from Debian; their versions follow Debian's security updates.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends chromium libegl1 libosmesa6 \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 MUJOCO_GL=egl
COPY constraints.txt /tmp/constraints.txt
# torch first and alone, from the index given here; its CPU build keeps the image small.
ARG TORCH_INDEX=""
# hadolint ignore=DL3013
RUN pip install torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
COPY --from=wheel /dist /dist
# hadolint ignore=DL3013
RUN pip install --constraint /tmp/constraints.txt "$(echo /dist/*.whl)[train,plots,web,video,serve,ray]"
RUN useradd --create-home --uid 1001 user
USER 1001
WORKDIR /home/user
ENTRYPOINT ["terrella"]
CMD ["doctor"]
