#!/bin/bash
# regard train on several machines of a Slurm cluster, one process for each GPU or core:
#
#     sbatch deploy/train-slurm.sh chat-transformer --data /shared/pairs.tsv --epochs 20
#
# torchrun starts the processes; Slurm starts one torchrun on each machine. The folder of the run is
# named by the job: a job that Slurm starts again (--requeue) goes on with it.

#SBATCH --job-name=regard
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
##SBATCH --gpus-per-node=8          # with GPUs, and PROCESSES=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# 120 seconds before the end of its time, so that a checkpoint is saved.
#SBATCH --signal=TERM@120

set -euo pipefail

PROCESSES=${PROCESSES:-1}           # on each machine: the number of its GPUs, or 1
SHARED=${SHARED:-$SLURM_SUBMIT_DIR}  # a folder that all machines have
RUN=$SHARED/runs/slurm-$SLURM_JOB_ID

export REGARD_CACHE=${REGARD_CACHE:-$SHARED/cache}   # prepared data: once for all machines
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / PROCESSES))

leader=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))

if [ -e "$RUN/manifest.json" ]; then
    words=(--resume "$RUN")
else
    words=("$@" --out "$RUN")
fi

# The first machine opens the port, and each tells the others the name that Slurm knows it by.
# shellcheck disable=SC2016
here='exec torchrun --rdzv-conf="is_host=$((SLURM_NODEID == 0))" --local-addr="$SLURMD_NODENAME" "$@"'

exec srun --kill-on-bad-exit=1 bash -c "$here" torchrun \
    --nnodes="$SLURM_NNODES" \
    --nproc-per-node="$PROCESSES" \
    --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-backend=c10d \
    --rdzv-endpoint="$leader:$port" \
    --max-restarts=3 \
    -m regard train "${words[@]}"
