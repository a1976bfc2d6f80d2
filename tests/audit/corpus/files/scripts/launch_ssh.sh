#!/usr/bin/env bash
HOSTS="gpu01 gpu02 gpu03 gpu04"
MASTER=gpu01
rank=0
for host in $HOSTS; do
  ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "$host" \  #@ K8S-024
    "cd /nfs/run && python -m torch.distributed.launch --nproc_per_node=8 --nnodes=4 --node_rank=$rank --master_addr=$MASTER train.py" &  #@ RDZ-009
  rank=$((rank + 1))
done
sshpass -p 'Gpu4dmin!2024' scp results.tar admin@storage:/export  #@ SEC-002
wait
