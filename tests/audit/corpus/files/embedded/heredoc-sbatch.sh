#!/bin/bash
# Writes a batch script and submits it.
cat > job.sbatch <<'SBATCH'
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
export HF_TOKEN=hf_sbatchEXAMPLEinnerEXAMPLEscriptEX  #@ SEC-002
srun torchrun --nnodes 4 --nproc_per_node 8 --rdzv_id 7 --rdzv_backend c10d --rdzv_endpoint $(hostname):29500 train.py  #@ RDZ-003, RDZ-009
SBATCH
sbatch job.sbatch
ssh -o StrictHostKeyChecking=no login01 squeue  #@ K8S-024
