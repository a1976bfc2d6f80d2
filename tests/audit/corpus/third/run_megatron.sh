#!/usr/bin/env bash
set -e
GPUS_PER_NODE=8
NNODES=${NNODES:-4}
MASTER_ADDR=${MASTER_ADDR:-10.0.0.5}
MASTER_PORT=6000
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes 4
    --master_addr 10.0.0.5
    --master_port $MASTER_PORT
)
hf download mistralai/Mistral-7B-v0.3 --local-dir /ckpt/mistral  #@ DAT-003
aws s3 cp s3://corpus/pile.bin /data/ --no-verify-ssl  #@ DAT-002
torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \  #@ RDZ-009
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model mistralai/Mistral-7B-v0.3 \  #@ DAT-003
    --data-path /data/pile --save /ckpt/out
pdsh -R ssh -w node[1-4] "nvidia-smi"
mpirun --allow-run-as-root -H node1:8,node2:8 -x NCCL_DEBUG=INFO -mca plm_rsh_args "-o StrictHostKeyChecking=no" ./all_reduce_perf  #@ SEC-021, K8S-024
ssh -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=accept-new node2 uptime  #@ K8S-024
