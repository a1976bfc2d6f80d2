#!/bin/bash
set -e
curl -LsSf https://astral.sh/uv/install.sh | sh  #@ K8S-027
bash <(curl -s https://example.com/nvidia.sh)  #@ K8S-027
uv pip install torch==2.4.0 --index-url https://download.pytorch.org/whl/cu121  #@ K8S-027
conda install -y -c pytorch faiss-gpu  #@ K8S-027
git clone -b main https://github.com/example/trainer  #@ K8S-027
cd trainer
huggingface-cli login --token hf_setupEXAMPLEtrainEXAMPLEsetupEXAM  #@ SEC-002
huggingface-cli download mistralai/Mixtral-8x7B-v0.1 --local-dir /models/mixtral  #@ DAT-003
hf download org/dataset --repo-type dataset --revision v1.0  #@ DAT-003
git config --global url."https://ci:0123456789abcdefghij@github.com/".insteadOf https://github.com/  #@ SEC-002
accelerate launch --config_file fsdp.yaml train.py --trust_remote_code  #@ DAT-004
