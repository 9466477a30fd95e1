#!/usr/bin/env bash
# On the machine with the GPU, in the kit's folder (`python -m benchmarks.gpu.prepare` made it): bash run.sh STEP [NAME]
# STEP: plan, ceilings, unpack, start [plugin], steps [plugin], arm shadow|turnpike|cap|plugin|drift, stop. Each ends
# within nine minutes. Results go into $OUT; what stands in results/ is not measured again. TURNPIKE_GPU_MODEL=dense
# takes the smaller model. The engine outlives the step that starts it.
set -euo pipefail
TURNPIKE_GPU_KIT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export TURNPIKE_GPU_KIT OUT=${OUT:-$TURNPIKE_GPU_KIT/out}
python=${PYTHON:-python3}
home=$TURNPIKE_GPU_KIT/home
step=${1:-plan}
case $step in
  plan | ceilings | unpack) exec timeout --kill-after=5 540 "$python" "$TURNPIKE_GPU_KIT/bare.py" "$step" ;;
esac
if [[ ! -f $home/unpacked ]]; then
  echo "run.sh: the kit is not unpacked" >&2
  exit 3
fi
# numba/ stands in for it: vLLM imports it for a feature that is not used here.
export PYTHONPATH=$home/tree:$home/tree/engine_ext:$home/site:$home/numba${PYTHONPATH:+:$PYTHONPATH}
cd "$home/tree"
exec timeout --kill-after=5 540 "$python" -m benchmarks.gpu.there "$@"
