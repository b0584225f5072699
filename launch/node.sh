#!/usr/bin/env bash
# One node's share of a terrella command: the same script on a workstation, under Slurm, SkyPilot and KubeRay.
# `terrella launch RECIPE --devices 8` calls it with the command that the recipe is for.
#   DEVICES=8 launch/node.sh rlvr tiny_counter --out runs/x
#   NODES=2 NODE_RANK=0 HEAD=10.0.0.1 DEVICES=8 SHARDING=fsdp2 launch/node.sh rlvr tiny_counter --out /shared/runs/x
# DEVICES   processes on this node, one per GPU       NODES, NODE_RANK   how many nodes, and which one this is
# HEAD      address of node 0 on the private network  PORT               where its rendezvous listens
# SHARDING  ddp (without a GPU: gloo) or fsdp2
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

: "${DEVICES:?set it to the number of processes on this node, one per GPU}"
: "${NODES:=1}" "${NODE_RANK:=${SLURM_NODEID:-0}}" "${HEAD:=127.0.0.1}" "${PORT:=29500}" "${SHARDING:=ddp}"
case "$SHARDING" in ddp | fsdp2) ;; *) echo "node.sh: SHARDING=$SHARDING: ddp or fsdp2" >&2; exit 2 ;; esac
[ "$NODE_RANK" -lt "$NODES" ] || { echo "node.sh: NODE_RANK=$NODE_RANK, but NODES=$NODES" >&2; exit 2; }
[ "$#" -gt 1 ] || { echo "node.sh: which command and which recipe? launch/node.sh rlvr tiny_counter" >&2; exit 2; }

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"    # one process per device already: threads would fight for cores
if [ "$1" = reproduce ] && [[ " $* " != *" --only "* ]]; then
  # Arms x seeds: this process hands out the devices, and each job comes back here with `--only`.
  export DEVICES NODES NODE_RANK HEAD PORT SHARDING
  exec terrella "$@" --devices "$DEVICES"
fi
if [ "$((NODES * DEVICES))" -eq 1 ]; then
  exec terrella "$@"
fi
exec accelerate launch --config_file "$here/accelerate/$SHARDING.yaml" \
  --num_machines "$NODES" --machine_rank "$NODE_RANK" --num_processes "$((NODES * DEVICES))" \
  --main_process_ip "$HEAD" --main_process_port "$PORT" --module terrella.cli "$@"
