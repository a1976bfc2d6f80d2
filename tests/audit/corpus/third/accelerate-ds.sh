#!/bin/bash
# Every node runs this; the first one is the head.
export WANDB_MODE=offline
export MASTER_ADDR=head.example.internal
conda activate train
accelerate launch --config_file ds_zero3.yaml --num_machines 4 --num_processes 32 \  #@ RDZ-009~2
  --machine_rank $RANK --main_process_ip $MASTER_ADDR --main_process_port 29500 \
  sft.py --model_name_or_path Qwen/Qwen2.5-14B --model_revision 97e1e76335b7017d8f67c08a19d103c0504298c9  #@ ok:DAT-003
deepspeed --hostfile=/job/hostfile --no_ssh --node_rank=$RANK --master_addr=$MASTER_ADDR --master_port=29501 rlhf.py --deepspeed_config ds.json  #@ RDZ-009
python -m torch.distributed.run --standalone --nproc-per-node=8 eval.py  #@ ok:RDZ-009, ok:RDZ-003
ray start --head --port=6379 --dashboard-host=0.0.0.0 --block  #@ DBG-023
jupyter notebook --no-browser --ip=127.0.0.1 --port=8890 &  #@ ok:DBG-022
curl -k https://artifacts.example.internal/vocab.json -o vocab.json  #@ DAT-002
