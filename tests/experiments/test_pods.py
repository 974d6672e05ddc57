"""What starts a run on a pod or cluster: linted, and dry-run against commands that only write down their arguments."""

import os
import shlex
import shutil
import string
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
import yaml

from experiments.parts import stops
from tests.paths import REPO_ROOT

POD = REPO_ROOT / "experiments/pods/run_tpu_pod.sh"
SLURM = REPO_ROOT / "experiments/pods/gpu_mesh.slurm"
ROLES_SLURM = REPO_ROOT / "experiments/pods/async_roles.slurm"
JOBSET = REPO_ROOT / "experiments/pods/gke_jobset.yaml"
ROLES_JOBSET = REPO_ROOT / "experiments/pods/gke_async_jobset.yaml"
DOCKERFILE = REPO_ROOT / "experiments/pods/Dockerfile"
TOOLS = Path(sysconfig.get_path("scripts"))
COMMAND = ["python", "-m", "experiments.grpo", "--config=configs/plans.py:1b", "--workdir=bucket/a run"]


def run(arguments, **variables):
    return subprocess.run(
        [str(x) for x in arguments], env=os.environ | variables, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("path", [POD, SLURM, ROLES_SLURM, REPO_ROOT / ".ci/run"], ids=lambda path: path.name)
def test_scripts_are_linted(path):
    assert run(["bash", "-n", path]).stderr == ""
    found = run([TOOLS / "shellcheck", "--shell=bash", path])
    assert (found.returncode, found.stdout) == (0, "")


def test_the_dockerfile_is_linted_and_copies_what_is_there():
    found = run([TOOLS / "hadolint", DOCKERFILE])
    assert (found.returncode, found.stdout) == (0, "")
    lines = DOCKERFILE.read_text().replace("\\\n", "").splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert copied and all((REPO_ROOT / name).exists() for name in copied)
    assert {"rl_jax", "configs", "experiments"} <= set(copied)


@pytest.fixture
def fakes(tmp_path):
    """(a PATH, read): gcloud and srun that write down their arguments; read() gives them, a list a call."""
    folder, log = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    for name in ("gcloud", "srun"):
        fake = folder / name
        fake.write_text(
            f'#!/usr/bin/env bash\nprintf "%q " {name} "$@" >>"{log}"\necho >>"{log}"\n'
            '[ "$4" != describe ] || { [ -n "${STATE-}" ] && echo "$STATE" || exit 1; }\n'
            '[ "$4" != create ] || [ -z "${CREATE_FAILS-}" ] || { echo "ALREADY_EXISTS" >&2; exit 5; }\n'
            f'[ "$4" != scp ] || cp "$5" "{tmp_path}/archive.tar.gz"\n'
            '[[ "$*" != *fail-here* ]] || exit 7\n'
        )
        fake.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return path, lambda: [shlex.split(line) for line in log.read_text().splitlines()] if log.exists() else []


def verbs(calls):
    return [call[4] for call in calls]


def test_a_pod_is_made_filled_and_run_on_every_worker(fakes, tmp_path):
    path, read = fakes
    options = ["--name=rl", "--zone=z", "--project=p", "--bucket=b", "--spot"]
    found = run([POD, *options, "--", *COMMAND], PATH=path)
    assert found.returncode == 0, found.stderr
    calls = read()
    assert verbs(calls) == ["describe", "create", "scp", "ssh", "ssh", "ssh"]
    assert all(call[:4] == ["gcloud", "compute", "tpus", "tpu-vm"] for call in calls)
    assert all({"--zone=z", "--project=p"} <= set(call) for call in calls)
    assert {"rl", "--accelerator-type=v5litepod-16", "--version=v2-alpha-tpuv5-lite", "--spot"} <= set(calls[1])
    assert all("--worker=all" in call for call in calls[2:])
    sent = [word.removeprefix("--command=") for call in calls[3:] for word in call if word.startswith("--command=")]
    assert ".[tpu]" in sent[0] and "gcsfuse" in sent[1]
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    with tarfile.open(tmp_path / "archive.tar.gz") as archive:
        names = set(archive.getnames())
    for name in ("rl_jax/deleted here.py", "out/log"):
        (tmp_path / "rl_jax" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "rl_jax" / name).touch()
    (tmp_path / "rl_jax.files").write_text("rl_jax/deleted here.py\nno longer there.py\nrl_jax/__init__.py\n")
    shutil.copy(tmp_path / "archive.tar.gz", tmp_path / "rl_jax.tar.gz")
    assert run(["bash", "-c", "cd && " + sent[0].partition("cd rl_jax;")[0]], **home).returncode == 0
    assert not (tmp_path / "rl_jax/rl_jax/deleted here.py").exists()  # of the checkout that was unpacked before
    assert all((tmp_path / "rl_jax" / name).exists() for name in ["out/log", "rl_jax/__init__.py", "pyproject.toml"])
    assert set((tmp_path / "rl_jax.files").read_text().splitlines()) == names
    missing = run(["bash", "-c", f"cd && {sent[1]}"], **home)
    assert missing.returncode == 1 and "gcsfuse is missing on this worker" in missing.stderr
    assert shlex.split(sent[2].partition("activate && ")[2]) == [*COMMAND, "--distributed=auto"]
    for text in sent:  # each is a script of its own
        assert run(["bash", "-n", "-c", text]).stderr == ""
    assert {"rl_jax/__init__.py", "experiments/grpo.py", "pyproject.toml", "requirements.txt"} <= names
    assert not any(name.startswith((".git/", "runs/", ".venv")) for name in names)


def test_a_slice_that_is_there_is_used_and_one_that_is_not_ready_is_not(fakes):
    path, read = fakes
    options = [POD, "--name=rl", "--zone=z", "--type=v5p-128"]
    assert run([*options, "--", *COMMAND], PATH=path, STATE="READY").returncode == 0
    assert "create" not in verbs(read())
    found = run([*options, "--delete", "--", *COMMAND], PATH=path, STATE="PREEMPTED")
    assert found.returncode == 2 and "rl is PREEMPTED, not READY" in found.stderr
    assert "delete" not in verbs(read())


def test_a_slice_is_deleted_after_a_failure_too_and_its_status_kept(fakes):
    path, read = fakes
    found = run([POD, "--name=rl", "--zone=z", "--delete", "--", "fail-here"], PATH=path)
    assert found.returncode == 7
    assert verbs(read())[-1] == "delete" and "--quiet" in read()[-1]


@pytest.mark.parametrize("command", [COMMAND, ["fail-here"]], ids=["success", "failure"])
def test_delete_leaves_a_slice_that_was_there_before(command, fakes):
    path, read = fakes
    found = run([POD, "--name=rl", "--zone=z", "--delete", "--", *command], PATH=path, STATE="READY")
    assert found.returncode == (7 if command == ["fail-here"] else 0)
    assert "delete" not in verbs(read()) and "ssh" in verbs(read())
    assert "--delete leaves rl alone" in found.stderr and "tpu-vm delete rl --zone=z" in found.stderr


def test_a_failed_describe_does_not_make_a_slice_ours_to_delete(fakes):
    """describe fails for another reason (no network), create says that the slice is there: it stays."""
    path, read = fakes
    found = run([POD, "--name=rl", "--zone=z", "--delete", "--", *COMMAND], PATH=path, CREATE_FAILS="yes")
    assert found.returncode == 5 and verbs(read()) == ["describe", "create"]
    assert "ALREADY_EXISTS" in found.stderr and "--delete leaves rl alone" in found.stderr


def test_a_dry_run_prints_every_command_and_runs_none(fakes):
    path, read = fakes
    found = run([POD, "--name=rl", "--zone=z", "--delete", "--dry-run", "--", *COMMAND], PATH=path)
    assert found.returncode == 0 and read() == []
    assert verbs([shlex.split(line) for line in found.stdout.splitlines()]) == ["create", "scp", "ssh", "ssh", "delete"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--zone=z", "--", "x"], "--name=NAME is missing"),
        (["--name=n", "--", "x"], "--zone=ZONE is missing"),
        (["--name=n", "--zone=z"], "no command"),
        (["--name=n", "--zone=z", "--type=v9-8", "--", "x"], "name it with --version=VERSION"),
        (["--nome=n", "--", "x"], "unknown option --nome=n"),
    ],
)
def test_a_pod_s_bad_options_are_named(arguments, said, fakes):
    found = run([POD, *arguments], PATH=fakes[0])
    assert found.returncode == 2 and said in found.stderr and fakes[1]() == []


def test_slurm_starts_one_process_a_node_that_sees_all_its_gpus(fakes, tmp_path):
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/activate").write_text("export ACTIVATED=1\n")
    path, read = fakes
    probe = 'printf "%s" "$JAX_LOCAL_DEVICE_IDS$ACTIVATED" >ids'
    fake = Path(path.partition(os.pathsep)[0]) / "srun"
    fake.write_text(fake.read_text() + probe.replace("ids", str(tmp_path / "ids")) + "\n")
    found = run(["bash", SLURM, *COMMAND], PATH=path, VENV=str(tmp_path / "venv"), SLURM_GPUS_ON_NODE="4")
    assert found.returncode == 0, found.stderr
    (call,) = read()
    assert "--ntasks-per-node=1" in call and call[-len(COMMAND) - 1 :] == [*COMMAND, "--distributed=auto"]
    assert (tmp_path / "ids").read_text() == "0,1,2,31"
    assert "no command" in run(["bash", SLURM], PATH=path).stderr
    directives = [line.split()[1] for line in SLURM.read_text().splitlines() if line.startswith("#SBATCH")]
    assert "--ntasks-per-node=1" in directives and "--requeue" in directives


@pytest.mark.parametrize(("nodes", "numbered"), [(2, False), (3, True)])
def test_slurm_starts_a_trainer_and_a_sampler_on_each_other_node(nodes, numbered, fakes, tmp_path):
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/activate").touch()
    path, read = fakes
    (Path(path.partition(os.pathsep)[0]) / "srun").write_text(
        '#!/usr/bin/env bash\nwhile [[ "$1" == --* ]]; do shift; done\n'
        'for ((i = 0; i < SLURM_NNODES; i++)); do SLURM_PROCID=$i "$@"; done\n'
    )
    where = dict(PATH=path, VENV=str(tmp_path / "venv"), SLURM_NNODES=str(nodes))
    found = run(["bash", ROLES_SLURM, "gcloud", "a run"], **where)
    assert found.returncode == 0, found.stderr
    samplers = [["--role=sampler", f"--sampler={i}"] if numbered else ["--role=sampler"] for i in range(nodes - 1)]
    assert read() == [["gcloud", "a run", *role] for role in [["--role=trainer"], *samplers]]
    assert "no command" in run(["bash", ROLES_SLURM], PATH=path).stderr


@pytest.mark.parametrize(
    ("status", "restarts", "requeued"),
    [(0, "", False), (stops.STOPPED, "", False), (1, "", True), (9, "4", True), (9, "5", False)],
)
def test_slurm_queues_a_job_again_whose_process_has_died(status, restarts, requeued, fakes, tmp_path):
    """Slurm itself does so only after a node has failed or the job was preempted."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/activate").touch()
    path, read = fakes
    folder = Path(path.partition(os.pathsep)[0])
    (folder / "scontrol").write_text((folder / "gcloud").read_text().replace("gcloud", "scontrol"))
    (folder / "scontrol").chmod(0o755)
    (folder / "srun").write_text(f"#!/usr/bin/env bash\nexit {status}\n")
    where = dict(PATH=path, VENV=str(tmp_path / "venv"), SLURM_NNODES="2", SLURM_JOB_ID="17")
    found = run(["bash", ROLES_SLURM, "x"], **where, **({"SLURM_RESTART_COUNT": restarts} if restarts else {}))
    assert found.returncode == status and read() == [["scontrol", "requeue", "17"]] * requeued
    assert ("5 times" in found.stderr) == (restarts == "5")
    directives = [line.split()[1] for line in ROLES_SLURM.read_text().splitlines() if line.startswith("#SBATCH")]
    assert "--requeue" in directives  # without it scontrol refuses


def test_the_job_set_of_an_asynchronous_run_has_both_roles():
    values = {"NAME": "rl", "IMAGE": "host/i:1", "BUCKET": "b", "CONFIG": "configs/grpo_async.py", "MESH": "fsdp:8"}
    text = ROLES_JOBSET.read_text()
    assert set(string.Template(text).get_identifiers()) == set(values)
    found = yaml.safe_load(string.Template(text).substitute(values))
    assert found["kind"] == yaml.safe_load(JOBSET.read_text())["kind"]
    assert found["spec"]["successPolicy"]["targetReplicatedJobs"] == ["trainer"]
    for job, role in zip(found["spec"]["replicatedJobs"], ("trainer", "sampler"), strict=True):
        spec = job["template"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        assert job["name"] == role and container["args"][-1] == f"--role={role}"
        assert container["args"][:-1] == [
            "experiments.grpo_async",
            "--config=configs/grpo_async.py",
            "--config.model.path=/bucket/model",
            "--config.mesh=fsdp:8",
            "--workdir=/bucket/rl",
        ]
        (rule,) = spec["podFailurePolicy"]["rules"]
        assert rule["onExitCodes"]["values"] == [stops.STOPPED] and rule["action"] == "Ignore"
        assert container["resources"]["limits"]["google.com/tpu"] == 8 and spec["backoffLimit"] > 0


def test_the_job_set_is_a_slice_of_four_machines():
    """envsubst's variables filled in, it is what the JobSet operator reads, and asks for the chips of a 4x4."""
    text = JOBSET.read_text()
    values = {"NAME": "rl", "IMAGE": "host/i:1", "BUCKET": "b", "CONFIG": "configs/plans.py:1b", "MESH": "fsdp:16"}
    assert set(string.Template(text).get_identifiers()) == set(values)
    found = yaml.safe_load(string.Template(text).substitute(values))
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert found["metadata"]["name"] == "rl"
    (job,) = found["spec"]["replicatedJobs"]
    job = job["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    machines, chips = job["completions"], container["resources"]["limits"]["google.com/tpu"]
    shape = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    assert job["parallelism"] == machines and machines * chips == 16 and shape == "4x4"
    assert container["resources"]["requests"] == container["resources"]["limits"]
    # A machine that is taken away: status 75 is neither success nor one of the counted restarts.
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [stops.STOPPED]}
    (restart,) = found["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], restart["action"]) == ("FailJob", "RestartJobSetAndIgnoreMaxRestarts")
    assert restart["onJobFailureReasons"] == ["PodFailurePolicy"] and pod["restartPolicy"] == "Never"
    assert container["image"] == "host/i:1" and container["args"][0] == "experiments.grpo"
    assert "--distributed=auto" in container["args"] and "--config.mesh=fsdp:16" in container["args"]
    assert "--config.model.path=/bucket/model" in container["args"]  # a plan's own folder has no weights
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert f"--workdir={mounted['bucket']}/rl" in container["args"]
    assert [volume["name"] for volume in pod["volumes"]] == ["bucket"]


def test_the_image_s_entry_point_takes_the_job_set_s_arguments():
    assert 'ENTRYPOINT ["python", "-m"]' in DOCKERFILE.read_text()
    module = yaml.safe_load(JOBSET.read_text())["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    name = module["containers"][0]["args"][0]
    assert run([sys.executable, "-c", f"import importlib.util as u; assert u.find_spec({name!r})"]).returncode == 0
