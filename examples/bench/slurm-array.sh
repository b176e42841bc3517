#!/bin/sh
# A matrix in parts on a Slurm cluster: one task of the array a part.
#
#   sbatch --array=1-4 slurm-array.sh matrix.toml /shared/out
#   vmtax bench merge /shared/out/part-* -o /shared/out/whole      when all have ended
#
# A task that Slurm requeues goes on where it was stopped. All categories of a workload are in one part, so what is
# compared ran on one machine; --exclusive keeps others off it.
#SBATCH --job-name=vmtax-bench
#SBATCH --exclusive
#SBATCH --requeue
set -eu
matrix=$1
out=$2
parts=${SLURM_ARRAY_TASK_COUNT:?start this with sbatch --array=1-N}
part=${SLURM_ARRAY_TASK_ID:?start this with sbatch --array=1-N}
mkdir -p "$out"
exec "${VMTAX:-vmtax}" bench run "$matrix" --shard "$part/$parts" -o "$out/part-$part" --resume
