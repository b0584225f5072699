# One node with GPUs: TRL trains, vLLM samples.
#   docker build --file docker/trl.Dockerfile --tag terrella:trl .
#   docker run --rm --gpus all --shm-size 16g --volume "$PWD/runs:/home/user/runs" terrella:trl \
#     launch RECIPE --devices 8
FROM nvidia/cuda:12.9.1-devel-ubuntu24.04
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3.12 python3.12-dev python3.12-venv gcc git \
 && rm -rf /var/lib/apt/lists/*
RUN python3.12 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
# vLLM first: it pins torch. Then the versions that CI tests, but for what vLLM has chosen.
RUN pip install vllm==0.32.0
WORKDIR /source
COPY pyproject.toml README.md LICENSE CHANGELOG.md CITATION.cff ./
COPY src src
COPY launch launch
# hadolint ignore=DL3013
RUN pip install ".[train,plots,vllm,serve,ray]" transformers==5.19.0 trl==1.16.0 accelerate==1.15.0 peft==0.21.2 \
 && useradd --create-home --uid 1001 user
USER 1001
WORKDIR /home/user
ENTRYPOINT ["terrella"]
CMD ["doctor"]
