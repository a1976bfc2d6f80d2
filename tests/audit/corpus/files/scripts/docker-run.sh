#!/bin/bash
docker login -u robot -p dckr_pat_EXAMPLEexampleEXAMPLE0123 registry.example.com  #@ SEC-002
docker run --rm --gpus all -e NCCL_DEBUG=INFO \  #@ K8S-008, K8S-009
  registry.example.com/train@sha256:3f8b1c9c2e0d4a5b6c7d8e9f00112233445566778899aabbccddeeff00112233 \
  torchrun --nnodes=2 --node_rank=0 --master_addr=10.1.0.5 train.py  #@ RDZ-009
