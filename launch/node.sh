#!/usr/bin/env bash
# One node's share of `terrella rlvr RECIPE ...`: the same script on a workstation, under Slurm, SkyPilot and KubeRay.
#   DEVICES=8 launch/node.sh tiny_counter --out runs/x
#   NODES=2 NODE_RANK=0 HEAD=10.0.0.1 DEVICES=8 SHARDING=fsdp2 launch/node.sh tiny_counter --out /shared/runs/x
# DEVICES   processes on this node, one per GPU       NODES, NODE_RANK   how many nodes, and which one this is
# HEAD      address of node 0 on the private network  PORT               where its rendezvous listens
# SHARDING  ddp, fsdp2, or cpu (gloo, no GPU)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${DEVICES:?set it to the number of processes on this node, one per GPU}"
: "${NODES:=1}" "${NODE_RANK:=${SLURM_NODEID:-0}}" "${HEAD:=127.0.0.1}" "${PORT:=29500}" "${SHARDING:=ddp}"
case "$SHARDING" in ddp | fsdp2 | cpu) ;; *) echo "node.sh: SHARDING=$SHARDING: ddp, fsdp2 or cpu" >&2; exit 2 ;; esac
[ "$NODE_RANK" -lt "$NODES" ] || { echo "node.sh: NODE_RANK=$NODE_RANK, but NODES=$NODES" >&2; exit 2; }

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"    # one process per device already: threads would fight for cores
if [ "$((NODES * DEVICES))" -eq 1 ]; then
  exec terrella rlvr "$@"
fi
if [ "$SHARDING" = cpu ]; then    # accelerate's launcher starts a single process when there is no GPU
  exec torchrun --nnodes "$NODES" --node_rank "$NODE_RANK" --nproc_per_node "$DEVICES" \
    --master_addr "$HEAD" --master_port "$PORT" --module terrella.cli rlvr "$@"
fi
exec accelerate launch --config_file "launch/accelerate/$SHARDING.yaml" \
  --num_machines "$NODES" --machine_rank "$NODE_RANK" --num_processes "$((NODES * DEVICES))" \
  --main_process_ip "$HEAD" --main_process_port "$PORT" --module terrella.cli rlvr "$@"
