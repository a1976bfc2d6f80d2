#!/bin/sh
nohup tensorboard --logdir=/runs --bind_all --port 6006 >/dev/null 2>&1 &  #@ DBG-021
(cd /work && jupyter-lab --allow-root --ip '*' --LabApp.token='' &)  #@ DBG-022
if [ "$RANK" = 0 ]; then
  ray start --head --include-dashboard=true --dashboard-host=:: --num-gpus=8  #@ DBG-023
else
  ray start --address "$HEAD:6379"
fi
python3 -m debugpy --listen 0.0.0.0:5678 --wait-for-client train.py  #@ DBG-024
gdbserver :2345 ./a.out  #@ DBG-024
python -m torch.distributed.run --rdzv-backend="${RDZV:-c10d}" --nnodes=$NNODES t.py  #@ open:RDZ-003
