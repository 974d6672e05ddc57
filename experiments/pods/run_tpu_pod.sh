#!/usr/bin/env bash
# One command on every worker of a Cloud TPU slice: makes the slice where there is none, copies this checkout, installs
# .[tpu], runs.
#
#   experiments/pods/run_tpu_pod.sh --name=NAME --zone=ZONE [options] -- python -m experiments.grpo --config=... --workdir=...
#
# --type=v5litepod-16      the slice: v5litepod-N (v5e), v5p-N (N counts cores, two a chip), v6e-N
# --version=VERSION        the image of its machines; the default fits the type
# --project=PROJECT        the default is gcloud's
# --bucket=BUCKET          mounted at ~/bucket on every worker: --workdir must be where all of them see the same files.
#                          Make it with --enable-hierarchical-namespace: only there is a folder renamed at once.
#                          gcsfuse mounts it: install that on every worker where the image has none
# --spot                   cheaper, and may be taken away: the run saves on the notice; delete the slice that is left,
#                          and the same command goes on with a new one
# --delete                 a slice that this call has made is deleted when the command has ended, whatever its status;
#                          one that was there before never is
# --dry-run                prints every command and runs none
#
# Status 75: the run was stopped by a signal after it had saved; the same command goes on.
# The command gets --distributed=auto at its end: every worker runs the same program, and they find each other.
set -euo pipefail

fail() {
  echo "run_tpu_pod.sh: $1" >&2
  exit 2
}

name="" zone="" type="v5litepod-16" version="" project="" bucket="" spot="" delete="" dry=""
while [ $# -gt 0 ]; do
  case "$1" in
    --name=?* | --zone=?* | --type=?* | --version=?* | --project=?* | --bucket=?*)
      option=${1%%=*}
      printf -v "${option#--}" '%s' "${1#*=}"
      ;;
    --spot | --delete) printf -v "${1#--}" '%s' yes ;;
    --dry-run) dry=yes ;;
    --) shift && break ;;
    *) fail "unknown option $1; the head of $0 lists them, and the command comes after --" ;;
  esac
  shift
done
[ -n "$name" ] || fail "--name=NAME is missing"
[ -n "$zone" ] || fail "--zone=ZONE is missing"
[ $# -gt 0 ] || fail "no command: it comes after --"

if [ -z "$version" ]; then
  case "$type" in
    v5litepod-*) version=v2-alpha-tpuv5-lite ;;
    v5p-*) version=v2-alpha-tpuv5 ;;
    v6e-*) version=v2-alpha-tpuv6e ;;
    v4-*) version=tpu-ubuntu2204-base ;;
    *) fail "--type=$type: which image its machines take is not known here, name it with --version=VERSION" ;;
  esac
fi

where=(--zone="$zone" ${project:+--project="$project"})
tpu() { # ARGUMENTS...: a gcloud command in the slice's zone
  local command=(gcloud compute tpus tpu-vm "$@" "${where[@]}")
  if [ -n "$dry" ]; then
    printf '%q ' "${command[@]}"
    printf '\n'
  else
    "${command[@]}"
  fi
}
everywhere() { # COMMAND: in the shell of every worker
  tpu ssh "$name" --worker=all --command="$1"
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/rl_jax-pod.XXXXXX")
ours="" # yes once this call's own create has succeeded: nothing else makes the slice this call's to delete
cleanup() {
  status=$?
  rm -rf "$scratch"
  if [ -n "$delete" ] && [ -n "$ours" ]; then
    tpu delete "$name" --quiet || echo "run_tpu_pod.sh: $name is NOT deleted" >&2
  elif [ -n "$delete" ]; then
    echo "run_tpu_pod.sh: --delete leaves $name alone: this call has not made it. By hand, if it is there and yours:" >&2
    echo "  gcloud compute tpus tpu-vm delete $name ${where[*]}" >&2
  fi
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# A slice that is there is used as it is: a run that was stopped goes on where it was.
if [ -n "$dry" ] || ! tpu describe "$name" --format="value(state)" >"$scratch/state" 2>"$scratch/error"; then
  # A describe that fails is no proof that the slice is not there: only a create that succeeds is.
  tpu create "$name" --accelerator-type="$type" --version="$version" ${spot:+--spot} || {
    status=$?
    echo "run_tpu_pod.sh: $name was not made; describe had said: $(cat "$scratch/error")" >&2
    exit "$status"
  }
  ours=yes
else
  grep -qx READY "$scratch/state" || fail "$name is $(cat "$scratch/state"), not READY: delete it, or wait for it"
fi

# What git tracks and what it would track: no run, no virtual environment, no cache.
archive="$scratch/rl_jax.tar.gz"
(cd "$root" && git ls-files -z --cached --others --exclude-standard --deduplicate |
  while IFS= read -r -d '' path; do [ ! -e "$path" ] || printf '%s\0' "$path"; done |
  tar --create --gzip --null --files-from=- --file="$archive")
tpu scp "$archive" "$name:rl_jax.tar.gz" --worker=all

# The image's Python is older than 3.11, so uv brings one; what is installed already is not installed again.
# The files that were unpacked before go first, and nothing else: one that has been deleted here would be imported there.
everywhere "set -e; mkdir -p rl_jax; [ ! -e rl_jax.files ] || (cd rl_jax && xargs -r -d '\\n' rm -f -- <../rl_jax.files); \
tar --quoting-style=literal -xvzf rl_jax.tar.gz -C rl_jax >rl_jax.files; cd rl_jax; \
python3 -m pip install --quiet --user uv; export PATH=\$HOME/.local/bin:\$PATH; \
[ -d .venv ] || uv venv --quiet --python 3.11 .venv; uv pip install --quiet --python .venv -e '.[tpu]'"
if [ -n "$bucket" ]; then
  everywhere "mkdir -p bucket; mountpoint -q bucket && exit; command -v gcsfuse >/dev/null || { \
echo 'gcsfuse is missing on this worker: cloud.google.com/storage/docs/cloud-storage-fuse/install' >&2; exit 1; }; \
gcsfuse --implicit-dirs --rename-dir-limit=100000 $(printf '%q' "$bucket") bucket"
fi
printf -v command '%q ' "$@" --distributed=auto
everywhere "cd rl_jax && . .venv/bin/activate && $command"
