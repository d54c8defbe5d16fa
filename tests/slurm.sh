#!/bin/bash
# Slurm on this one machine: srun without PMI and with PMIx, and a batch job that a signal lets save and that goes on
# after a requeue, as docs/cluster.md has it. Wants root, Debian's slurmctld, slurmd, slurm-client, munge, libpmix-dev,
# and `gossipgrad` on PATH. Prints "slurm: fine" at its end.
set -u
folder=$(mktemp -d)
host=$(hostname -s)
export SLURM_CONF=$folder/slurm.conf PATH=$PATH:/usr/sbin

cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=$host
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName=$host CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
mkdir "$folder/state" "$folder/spool"
munge=
if ! munge -n >/dev/null 2>&1; then
    mkdir -p /run/munge && chown munge /run/munge
    su -s /bin/sh munge -c "exec munged --pid-file /run/munge/test.pid" && munge=/run/munge/test.pid
fi

tidy() {
    scancel --full --user "$(id -un)" 2>/dev/null
    for file in "$folder/slurmd.pid" "$folder/slurmctld.pid" $munge; do kill "$(cat "$file")" 2>/dev/null; done
    rm -rf "$folder"
}
trap tidy EXIT

fail() {
    echo "slurm: failed: $1"
    tail -n 30 "$folder"/*.out "$folder"/*.log
    exit 1
}

# until_true WHAT COMMAND...: waits two minutes at most
until_true() {
    local what=$1
    shift
    for _ in $(seq 240); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.5
    done
    fail "$what"
}

slurmctld || fail slurmctld
slurmd -N "$host" || fail slurmd
until_true "the node is not idle" sh -c "sinfo -h -o %T | grep -q idle"

cat >"$folder/script.py" <<'END'
import os, sys
import numpy as np
import gossipgrad as gg

trainer = gg.Trainer(gg.Sequential([gg.Flatten(), gg.Linear(3)], input=(1, 2, 2)))
draws = np.random.default_rng(0)
data = draws.standard_normal((400, 1, 2, 2), np.float32), draws.integers(0, 3, 400)
path = sys.argv[1]
resume = path if os.path.exists(path) else None


class First(gg.Callback):
    every = 1000

    def on_step(self, trainer, step):
        if trainer.rank == 0 and step == 1000:
            print("trains on", trainer.size, flush=True)
        trainer.stop = resume is not None


saving = gg.Checkpoint(path, save_on_signal=True)
trainer.fit(data, epochs=10**6, batch_size=1, callbacks=[First(), saving], progress=False, resume=resume)
print("ends at step", trainer.step, flush=True)
END

srun -n 2 --mpi=none python "$folder/script.py" "$folder/none" >"$folder/none.out" 2>&1
grep -q "started by srun (SLURM_STEP_NUM_TASKS=2) without PMI" "$folder/none.out" || fail "srun without PMI"

if srun -n 2 --mpi=pmix true 2>/dev/null; then
    srun -n 2 --mpi=pmix python "$folder/script.py" "$folder/step" >"$folder/step.out" 2>&1 &
    step=$!
    until_true "srun's ranks do not train" grep -q "trains on 2" "$folder/step.out"
    scancel --signal=USR1 "$(squeue -h -t R -o %i | tail -n 1)"
    wait $step
    [ $? -eq 75 ] || fail "srun's ranks did not save"
fi

cat >"$folder/job.sh" <<END
#!/bin/bash
#SBATCH --ntasks=2
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=$folder/job.out
trap 'kill -USR1 \$job' USR1
gossipgrad run -n \$SLURM_NTASKS --save-on-signal $folder/script.py $folder/run &
job=\$!
wait \$job || wait \$job
code=\$?
echo "code \$code"
[ \$code -eq 75 ] && scontrol requeue \$SLURM_JOB_ID
END
job=$(sbatch --parsable "$folder/job.sh")
until_true "the job does not train" grep -q "trains on 2" "$folder/job.out"
scancel --batch --signal=USR1 "$job"
until_true "the job did not save" grep -q "code 75" "$folder/job.out"
until_true "the job is not queued again" sh -c "squeue -h -j $job -o %T | grep -q PENDING"
scontrol update "jobid=$job" StartTime=now
until_true "the job did not go on" grep -q "code 0" "$folder/job.out"
grep -q "ends at step" "$folder/job.out" || fail "the job did not end"
echo "slurm: fine"
