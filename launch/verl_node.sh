#!/usr/bin/env bash
# One node's share of a terrella command on verl: the first node is Ray's head and runs the command, the others serve.
#   NODES=2 NODE_RANK=0 HEAD=10.0.0.1 DEVICES=8 RAY_AUTH_TOKEN_PATH=~/.token launch/verl_node.sh rlvr tiny_counter --out /shared/runs/x
# DEVICES   GPUs of this node                         NODES, NODE_RANK      how many nodes, and which one this is
# HEAD      address of node 0 on the private network  PORT                  where Ray's head listens
# RAY_AUTH_TOKEN_PATH   a file with the same secret on every node: whoever reaches a Ray port without one can run code
set -euo pipefail
: "${DEVICES:?set it to the number of GPUs of this node}"
: "${NODES:=1}" "${NODE_RANK:=${SLURM_NODEID:-0}}" "${HEAD:=127.0.0.1}" "${PORT:=6379}"
: "${RAY_AUTH_TOKEN_PATH:?set it to a file with a secret that all nodes share}"
[ -s "$RAY_AUTH_TOKEN_PATH" ] || { echo "verl_node.sh: $RAY_AUTH_TOKEN_PATH is empty or not there" >&2; exit 2; }
[ "$#" -gt 1 ] || { echo "verl_node.sh: which command and which recipe? launch/verl_node.sh rlvr tiny_counter" >&2; exit 2; }
[ "$NODE_RANK" -lt "$NODES" ] || { echo "verl_node.sh: NODE_RANK=$NODE_RANK, but NODES=$NODES" >&2; exit 2; }

export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH RAY_USAGE_STATS_ENABLED=0
# One node needs no network; Ray's own default is an address that other machines can reach, even for HEAD=127.0.0.1.
[ "$NODES" -gt 1 ] || export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"    # one process per device already: threads would fight for cores
ray=(ray start --disable-usage-stats --num-gpus="$DEVICES")
if [ "$NODE_RANK" -gt 0 ]; then
  exec "${ray[@]}" --block --address="$HEAD:$PORT"     # tries for a minute: the head may come later
fi

# In this shell's care, not by `ray stop`: that would end every Ray of this user on the machine.
"${ray[@]}" --block --head --node-ip-address="$HEAD" --port="$PORT" --include-dashboard=false &
head=$!
trap 'kill "$head" 2> /dev/null || true; wait "$head" || true' EXIT
export RAY_ADDRESS="$HEAD:$PORT"
terrella doctor --cluster --nodes "$NODES" --out "${SHARED:-runs}"   # waits for all nodes, and names what is wrong
terrella "$@" --set engine=verl --set "verl.nodes=$NODES" --set "verl.devices=$DEVICES"
