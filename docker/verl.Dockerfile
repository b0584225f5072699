# A node of a Ray cluster: verl trains and samples.
#   docker build --file docker/verl.Dockerfile --tag terrella:verl .
# launch/verl_kuberay.yaml and launch/verl_skypilot.yaml take the image; launch/verl_node.sh is its entry.
FROM nvidia/cuda:12.9.1-devel-ubuntu24.04
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3.12 python3.12-dev python3.12-venv gcc git \
 && rm -rf /var/lib/apt/lists/*
RUN python3.12 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0
RUN pip install vllm==0.32.0
WORKDIR /source
COPY pyproject.toml README.md LICENSE CHANGELOG.md CITATION.cff constraints-verl.txt ./
COPY src src
COPY launch launch
# hadolint ignore=DL3013
RUN pip install ".[train,plots,ray]" transformers==5.19.0 trl==1.16.0 accelerate==1.15.0 peft==0.21.2 ray==2.60.0
# verl asks for an older transformers than vLLM does: it comes without its dependencies, and what it
# imports comes in the versions that CI tests (docs/design/0003-verl.md).
RUN grep --extended-regexp '^(verl|TransferQueue|tensordict|hydra-core|omegaconf|antlr4-python3-runtime|codetiming|pylatexenc|pyvers|torchdata|orjson)==' \
      constraints-verl.txt > /tmp/verl.txt \
 && pip install --no-deps --requirement /tmp/verl.txt \
 && rm -rf /opt/venv/lib/python3.12/site-packages/tests
RUN useradd --create-home --uid 1001 user
USER 1001
WORKDIR /home/user
ENTRYPOINT ["/source/launch/verl_node.sh"]
