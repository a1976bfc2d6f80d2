#!/bin/bash
# As newer examples write it.
set -e
GPUS=8
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS
    --nnodes 4
    --rdzv_backend c10d
    --rdzv_endpoint "trainer-0:29500"
)
MODEL_ARGS=(
    --trust-remote-code
    --tokenizer-type HuggingFaceTokenizer
)
torchrun "${DISTRIBUTED_ARGS[@]}" pretrain.py "${MODEL_ARGS[@]}" "$@"  #@ RDZ-003, DAT-004, RDZ-009
