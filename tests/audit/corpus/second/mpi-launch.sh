#!/usr/bin/env bash
set -euo pipefail
HOSTS=${HOSTS:-node1,node2}
for h in ${HOSTS//,/ }; do
  ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "$h" hostname  #@ K8S-024
done
wget --no-check-certificate https://data.example.com/shards.tar -O /tmp/shards.tar  #@ DAT-002
mpirun --allow-run-as-root -np 16 -H "$HOSTS" \  #@ SEC-021
  -x MASTER_ADDR=node1 python train.py --backend nccl
