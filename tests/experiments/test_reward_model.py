"""experiments.reward_model and experiments.parts.judges: runs on planted preferences, resuming bit for bit, the
loader."""

import json
from unittest import mock

import jax
import numpy as np
import pytest

from configs.preferences import reward_models, ultrafeedback
from experiments import reward_model
from experiments.parts import origin, reward_readers
from experiments.parts.judges.trained import load_head, load_reward_model
from experiments.parts.reward_evaluation import evaluate_responses
from experiments.parts.setup import load_params, make_setup
from rl_jax import preferences
from rl_jax.preferences.rated import ASPECTS
from rl_jax.rewards.benchmarks import pair_accuracy
from tests.experiments import small as small_runs
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("kept_signals")


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def texts(number, seed=0):
    """(prompt, good, bad): the good ones have more of "a" than of "b"; both have other letters, and all lengths."""
    rng = np.random.default_rng(seed)
    for place in range(number):
        good, bad = ("".join(rng.choice(list(letters), rng.integers(2, 7))) for letters in ("aac", "bbc"))
        yield f"{place:03d}:", "a" + good, "b" + bad


def pairs_file(tmp_path):
    return lines(
        tmp_path / "pairs.jsonl",
        [{"prompt": p, "chosen": good, "rejected": bad, "label_prob": 0.9} for p, good, bad in texts(80)],
    )


def small(tmp_path, words="", data="pairs", save_every=1000, **fields):
    """configs/preferences/reward_models.py on a model of one layer and planted data. fields: of config.algorithm
    or config.train. save_every: steps; a checkpoint costs more than a step, and the last one is there anyway."""
    config = reward_models.get_config(",".join(["smoke", "scratch", *filter(None, [words])]))
    config.data = dict(name="jsonl", kind=data, path=pairs_file(tmp_path), data_dir=str(tmp_path / "data"))
    config.task.alphabet = "0123456789:abc\n"
    config.model.update(embed_dim=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64)
    config.rollout.update(completion_length=10, prompt_buckets=(6,))
    config.eval.update(every=10, num_prompts=16, batch_size=16)
    config.checkpoint.every = save_every
    config.benchmarks.names = ()
    config.log.update(progress=False, tensorboard=False)
    config.train.update(steps=30, batch_size=16)
    config.train.optimizer.update(learning_rate=1e-2, warmup_steps=0)
    for name, value in fields.items():
        group = config.train if name in config.train else config.algorithm
        assert name in group
        group[name] = value
    return config


def rows(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def judged_right(workdir):
    """The share of unseen pairs that the loader's judge orders as they were made."""
    judge, (prompts, good, bad) = load_reward_model(workdir), zip(*texts(20, seed=5), strict=True)
    return pair_accuracy(judge.score_texts(prompts, good), judge.score_texts(prompts, bad))


def comparable(config):
    """The config with what a run of 3 steps needs to be held against the first 3 steps of a longer one."""
    config.train.micro_batches = 2
    config.train.optimizer.update(eps=1e-3)  # the usual eps blows rounding up
    config.eval.every = 3
    return config


def same_path(longer, short, rel, but=""):
    """The 3 steps of a run in workdir `short` are the first ones of `longer`, in all metrics `but` one."""
    found = rows(longer)[:4], rows(short)
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert name == but or one[name] == pytest.approx(other[name], rel=rel, abs=1e-5), (name, one["step"])
    assert len({row["loss"] for row in found[1][1:]}) == 3


def of_whole(folder, **fields):
    """Of the run `whole`. What the loader judges with is its adapters merged into the model."""
    found = comparable(small(folder, save_every=16, members=2, regularizer_coef=0.1, **fields))
    found.algorithm.loss = dict(fn="bradley_terry_soft")
    found.model.lora.update(rank=2, targets="layers/(q|v|down)")
    found.train.optimizer.weight_decay = 0.01  # moves all that is not frozen
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(folder, workdir) of a run on pairs: adapters and two heads, on one device, in padded rows."""
    folder = tmp_path_factory.mktemp("whole")
    reward_model.run(of_whole(folder), folder / "run")
    return folder, folder / "run"


@pytest.mark.slow
def test_pairs_are_learned_and_the_loader_judges_as_the_run_did(whole):
    folder, workdir = whole
    last, report = rows(workdir)[-1], json.loads((workdir / "evaluation.json").read_text())
    assert last["eval/accuracy"] == 1.0 and report["held_out"]["accuracy"] == 1.0
    assert 0.3 < last["loss"] < 0.35, "labels of 0.9 have an entropy of 0.325"
    assert rows(workdir)[0]["data/num_kept"] > 50 and (workdir / "final.json").exists()
    assert json.loads((workdir / "timing.jsonl").read_text().splitlines()[-1])["train_flops_per_s_per_device"] > 0
    judge = load_reward_model(workdir)
    prompts, good, bad = zip(*texts(20, seed=5), strict=True)
    chosen, rejected = judge.score_texts(prompts, good), judge.score_texts(prompts, bad)
    assert chosen.shape == (20,) and pair_accuracy(chosen, rejected) > 0.9
    # Token ids in, in rows padded on the left of the prompt and on the right of the response.
    batch = judge.encode(prompts, good)
    both = jax.jit(judge.members)(judge.params, batch)
    assert both.shape == (20, 2) and np.abs(np.diff(both)).max() > 0
    np.testing.assert_allclose(both.mean(axis=1), chosen, rtol=1e-5)
    worst = load_reward_model(workdir, combine=dict(fn="worst_case")).score_texts(prompts, good)
    np.testing.assert_allclose(both.min(axis=1), worst, rtol=1e-5)
    # Two runs as an ensemble of four.
    two = load_reward_model([workdir, workdir])
    np.testing.assert_allclose(jax.jit(two.members)(two.params, batch), np.tile(both, 2), rtol=1e-5)
    # The run's params are a language model that other programs load.
    setup = make_setup(of_whole(folder))
    assert set(load_params(setup, workdir)) == set(setup.init_params())


@pytest.mark.slow
def test_a_reward_model_of_ultrafeedbacks_ratings(tmp_path):
    """Made rows, as openbmb's: the best mean rating is preferred, on instructions that were held out."""

    def rated(text, *ratings):
        return {"response": text, "annotations": {a: {"Rating": r} for a, r in zip(ASPECTS, ratings, strict=True)}}

    made = [
        {"instruction": p, "completions": [rated(bad, "2", "1", "N/A", "1"), rated(good, "4", "5", "5", "4")]}
        for p, good, bad in texts(80)
    ]
    config, like = ultrafeedback.get_config("smoke"), small(tmp_path)
    config.data.update(path=lines(tmp_path / "rated.jsonl", made), test_share=0.2, data_dir=str(tmp_path / "data"))
    for group in ("model", "rollout", "eval", "log", "train", "checkpoint"):
        config[group] = like[group]
    config.rollout.update(completion_length=12, prompt_buckets=(32,))
    reward_model.run(config, tmp_path / "run")
    report = json.loads((tmp_path / "run/evaluation.json").read_text())["held_out"]
    assert report["accuracy"] > 0.9 and rows(tmp_path / "run")[0]["data/num_kept"] > 50
    assert ultrafeedback.get_config("rankings").algorithm.loss.fn == "plackett_luce"
    with pytest.raises(ValueError, match="rankings have none"):
        ultrafeedback.get_config("rankings,worst")


@pytest.mark.slow
def test_four_devices_and_shared_prompts_walk_the_path_of_one(whole):
    """In one run: each splits the rows in its own way, and a prompt that two responses share is computed once."""
    folder, workdir = whole
    config = of_whole(folder, steps=3)
    config.mesh, config.packing.mode = "data:2,fsdp:2", "shared_prefix"
    reward_model.run(config, folder / "four")
    same_path(workdir, folder / "four", rel=2e-3)


@pytest.mark.slow
def test_a_run_that_died_ends_where_an_undisturbed_one_ends(whole, tmp_path, capsys):
    """With adapters and two heads on a frozen base."""
    folder, workdir = whole
    adapters_alone_have_moved(of_whole(folder), workdir)
    killed, again = tmp_path / "killed", of_whole(folder)
    assert small_runs.cut_off(workdir, killed) == 16
    for name in ("evaluation.json", "rewards.json"):  # written at the end
        (killed / name).unlink()
    again.log.progress = True
    reward_model.run(again, killed)
    assert "resumes from step 16" in capsys.readouterr().out
    for name in ("metrics.jsonl", "final.json", "evaluation.json", "rewards.json"):
        assert (killed / name).read_bytes() == (workdir / name).read_bytes(), name
    assert len({row["loss"] for row in rows(workdir)[1:]}) == 30


def adapters_alone_have_moved(config, workdir):
    setup = make_setup(config)
    start, end = setup.init_params(), load_params(setup, workdir)
    jax.tree.map(np.testing.assert_array_equal, end["base"], start["base"])
    moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), end["adapters"], start["adapters"])
    assert min(jax.tree.leaves(moved)) > 1e-4


@pytest.mark.slow
def test_log_ratios_of_adapters_are_learned_in_packed_rows(tmp_path, capsys):
    """Labels 1 and 0 where there is no head. Padded rows change nothing, nor does an end at step 20."""

    def config(steps, mode):
        found = comparable(small(tmp_path, "implicit", steps=steps, save_every=20, responses=1, beta=1.0))
        found.model.lora.update(rank=2, targets="layers/(q|v|down)")
        found.train.optimizer.weight_decay = 0.01
        found.packing.mode = mode
        return found

    whole = tmp_path / "run"
    reward_model.run(config(40, "packed"), whole)
    adapters_alone_have_moved(config(40, "packed"), whole)
    report = json.loads((whole / "evaluation.json").read_text())["held_out"]
    # Labels of one prompt come in twos, a right and a wrong one: `auc` is there where both sides are.
    assert report["auc"] > 0.9 and "log_loss" in report, report
    assert judged_right(whole) > 0.9
    record = json.loads((whole / "run.json").read_text())
    assert origin.other_reference(whole, record["origin"]["reference_sha256"]) == ""
    with mock.patch.object(origin, "read_json", lambda path: {"origin": {"reference_sha256": "0"}}):
        with pytest.raises(ValueError, match="reads log-ratios needs its reference: .* another reference"):
            load_head(whole)
    reward_model.run(config(3, "padded"), tmp_path / "padded")
    # Accuracy: signs of log-ratios that are 0 but for rounding.
    same_path(whole, tmp_path / "padded", rel=1e-3, but="reward/accuracy")
    # The reference is that of the beginning again, not what the checkpoint holds.
    part, again = tmp_path / "part", config(40, "packed")
    step, again.log.progress = small_runs.cut_off(whole, part), True
    reward_model.run(again, part)
    assert f"resumes from step {step}" in capsys.readouterr().out
    for name in ("metrics.jsonl", "final.json", "evaluation.json"):
        assert (part / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.slow
def test_another_loss_learns_the_same(tmp_path):
    """The one whose head has bins and grades responses; tests/recipes/test_reward_model.py has every loss learn."""
    reward_model.run(small(tmp_path, "hl_gauss", steps=60), tmp_path / "run")
    report = json.loads((tmp_path / "run/evaluation.json").read_text())["held_out"]
    assert report["accuracy"] > 0.9 and "log_loss" not in report, report
    losses = [row["loss"] for row in rows(tmp_path / "run")[1:]]
    assert losses[-1] < losses[0] - 0.5, "of the wrong sign it orders them right all the same"
    assert judged_right(tmp_path / "run") > 0.9


def steps_file(tmp_path):
    """Solutions of three steps, of which the first wrong one is the last that has a label."""
    records = []
    for prompt, good, bad in texts(80):
        wrong = int(prompt[:3]) % 3
        steps = [bad[:3] if place == wrong else good[:3] for place in range(3)]
        labels = [1] * wrong + [0] + [None] * (2 - wrong)
        if wrong == 2 and int(prompt[:3]) % 2:
            steps, labels = [good[:3]] * 3, [1, 1, 1]
        records.append({"prompt": prompt, "steps": steps, "labels": labels})
    return lines(tmp_path / "steps.jsonl", records)


@pytest.mark.slow
def test_steps_are_learned(tmp_path):
    """In packed rows; and padded rows change nothing."""

    def config(steps, mode):
        found = comparable(small(tmp_path, "steps", data="steps", steps=steps))
        found.data.path = steps_file(tmp_path)
        found.rollout.update(completion_length=16)
        found.packing.mode = mode
        return found

    reward_model.run(config(60, "packed"), tmp_path / "run")
    report = json.loads((tmp_path / "run/evaluation.json").read_text())["held_out"]
    assert report["accuracy"] > 0.9 > report["always_right"] and report["first_mistake"] > 0.8
    judge = load_reward_model(tmp_path / "run")
    prompts = ["000:", "000:"]
    right, wrong = judge.score_texts(prompts, ["aac\naac\n", "aac\nbbc\n"])
    assert right > wrong
    reward_model.run(config(3, "padded"), tmp_path / "padded")
    same_path(tmp_path / "run", tmp_path / "padded", rel=1e-3)


@pytest.mark.slow
def test_attributes_are_learned_from_labels_with_gaps(tmp_path):
    """The first attribute is the share of "a", the second one of "b"; the reward is their difference."""
    records = []
    for place, (prompt, good, bad) in enumerate(texts(80)):
        for text, label in ((good, True), (bad, False)):
            targets = [text.count(letter) / len(text) for letter in "ab"]
            targets[place % 2] = None
            records.append({"prompt": prompt, "completion": text, "label": label, "attribute_targets": [targets]})
    config = small(tmp_path, data="labels", steps=60, responses=1, loss=dict(fn="attributes"))
    config.algorithm.attribute_weights = (1.0, -1.0)
    config.data.path = lines(tmp_path / "labels.jsonl", records)
    reward_model.run(config, tmp_path / "run")
    assert json.loads((tmp_path / "run/evaluation.json").read_text())["held_out"]["auc"] > 0.95
    del records[5]["attribute_targets"]
    config.data.path = lines(tmp_path / "broken.jsonl", records)
    with pytest.raises(ValueError, match="lacks 'attribute_targets', which record"):
        reward_model.run(config, tmp_path / "broken")


# --- Data and numbers ------------------------------------------------------------------------------------------------


def test_held_out_labels_are_of_both_sides(tmp_path):
    """The limit is of prompts: cut behind the unpairing it would leave the desirable responses alone."""
    config = small(tmp_path, responses=1, loss=dict(fn="outcome"))
    found = preferences.load(**config.data.to_dict())
    records = reward_readers.load_records(config, found, "train", 6)
    assert sorted(record["rewards"][0] for record in records) == [0.0] * 6 + [1.0] * 6
    assert len({record["prompt"] for record in records}) == 6


def held_out(rewards, grades, **fields):
    """(arrays, rewards, records) of one member's rewards of responses of one token each."""
    grades = np.array(grades, np.float32)
    present = np.ones(grades.shape, bool)
    arrays = dict(present=present, rewards=grades, completion_mask=present[:, :, None], indices=np.arange(len(grades)))
    arrays["label_probs"] = np.ones(len(grades), np.float32)
    records = [{"prompt": f"p{index}", "info": {}} for index in range(len(grades))]
    return arrays | fields, np.array(rewards, np.float32)[..., None], records


def test_evaluation_of_lists_leaves_ties_out():
    """Of three responses the second one is as right as the first, and has more reward; the third has less."""
    case = held_out([[2, 5, 1], [1, 3, 0], [1, 0, 4]], [[1, 1, 0], [1, 1, 0], [1, 0, 0]])
    found = evaluate_responses(*case, logits=True)
    assert found["accuracy"] == 0.75 and found["margin"] == pytest.approx((1 + 1 + 1 - 3) / 4)
    pair = evaluate_responses(*held_out([[2, 5], [1, 0]], [[1, 1], [1, 0]]), logits=True)
    assert pair["accuracy"] == 0.5  # of a pair the place says which is better


def test_evaluation_of_grades_takes_none_for_a_log_odds():
    labels = held_out([[0.9], [0.6], [0.4], [0.1]], [[1], [1], [0], [0]])
    grades, logits = (evaluate_responses(*labels, logits=flag) for flag in (False, True))
    assert grades["accuracy"] == 1.0 and logits["accuracy"] == 0.5 and grades["auc"] == logits["auc"] == 1.0
    pairs = held_out([[0.9, 0.1], [0.2, 0.4]], [[1, 0], [1, 0]])
    more = [evaluate_responses(*pairs, logits=flag) for flag in (False, True)]
    assert more[0]["accuracy"] == more[1]["accuracy"] == 0.5
    for without, with_ in ((grades, logits), more):
        assert {"log_loss", "ece"} <= set(with_) and not {"log_loss", "ece"} & set(without)


@pytest.mark.parametrize("loss", ["mse", "hl_gauss", "outcome"])
def test_a_reader_knows_whether_its_rewards_are_log_odds(tmp_path, loss):
    config = small(tmp_path, responses=1, loss=dict(fn=loss))
    setup = make_setup(config)
    found = reward_readers.make_reader(setup).evaluate(*held_out([[0.9], [0.1]], [[1], [0]]))
    assert ("log_loss" in found) == (loss == "outcome") and found["accuracy"] == (0.5 if loss == "outcome" else 1.0)


@pytest.mark.parametrize("loss", ["k_wise", "plackett_luce"])
def test_lists_of_the_only_graded_data(loss):
    config = reward_models.get_config(f"gsm8k,{loss}")
    assert config.data.kind == "rankings" and config.algorithm.responses == 4
    assert reward_models.get_config(loss).algorithm.responses == 2
    assert reward_models.get_config("gsm8k").data.kind == "labels"
    assert "kind" not in reward_models.get_config("hh").data, "published pairs are nothing else"


@pytest.mark.parametrize(
    ("loss", "name", "unsaid"), [("bradley_terry_soft", "label_probs", 1.0), ("bradley_terry_margin", "margins", 0.0)]
)
def test_labels_that_the_data_do_not_have(tmp_path, loss, name, unsaid):
    config = small(tmp_path, loss=dict(fn=loss))
    with pytest.raises(ValueError, match=f"{loss} needs {name}, but all of jsonl's are {unsaid}: use data"):
        reward_readers.check_labels(config, {name: np.full(3, unsaid)})
    reward_readers.check_labels(config, {name: np.array([unsaid, 0.5, unsaid])})
    reward_readers.check_labels(small(tmp_path), {name: np.full(3, unsaid)})


# --- What it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.algorithm.update(reads="essays"), "reads='essays' is none of response, steps, log_ratio"),
        (lambda c: c.algorithm.update(reads="steps"), "needs data.kind=steps"),
        (lambda c: c.algorithm.update(reads="log_ratio", members=2), "only reads='response' has several"),
        (lambda c: c.algorithm.head.update(layers=0), "a reward head of 0 layers"),
        (lambda c: c.algorithm.head.update(activation="relu"), "'relu' of a reward head is none of none, tanh"),
        (
            lambda c: c.algorithm.update(reads="user", head=dict(layers=2)),
            "head.layers=2: algorithm.reads='user' has no",
        ),
        (lambda c: c.algorithm.update(loss=dict(fn="bt")), "no function 'bt'; it has: .*bradley_terry"),
        (lambda c: c.algorithm.update(loss=dict(fn="bradley_terry", margin=1)), "takes no keyword 'margin'"),
        (
            lambda c: c.algorithm.update(loss=dict(fn="bradley_terry_margin")),
            "needs margins, but all of jsonl's are 0",
        ),
        (lambda c: c.packing.update(mode="dense"), "packing.mode='dense' is none of padded, packed, shared_prefix"),
        (lambda c: c.algorithm.update(responses=1, loss=dict(fn="bradley_terry")), "2 responses"),
        # Red before: these were read after the training.
        (
            lambda c: c.benchmarks.update(names=("mine",)),
            "names has 'mine', but benchmarks.sets has nothing",
        ),
        (
            lambda c: c.benchmarks.update(names=("a",), sets=dict(a=dict(name="jsonl", path="no.jsonl"))),
            "no.jsonl: cannot be opened",
        ),
    ],
)
def test_configs_that_do_not_fit(tmp_path, change, said):
    config = small(tmp_path)
    change(config)
    with pytest.raises(ValueError, match=said):
        reward_model.run(config, tmp_path / "run")


def test_a_judge_that_is_not_there(tmp_path):
    said = "has no finished run: train a reward model with python -m experiments.reward_model --config="
    config = "configs/preferences/reward_models.py"
    with pytest.raises(FileNotFoundError, match=f"{said}{config} --workdir={tmp_path}, or with another config"):
        load_reward_model(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"{said}{config}:smoke --workdir={tmp_path}/smoke_a, or"):
        load_reward_model(tmp_path / "smoke_a")
    with pytest.raises(ValueError, match="give the workdir"):
        load_reward_model([])


def test_fields_of_the_group():
    with pytest.raises(ValueError, match="membres.*members"):
        reward_models.reward_model(membres=1)
