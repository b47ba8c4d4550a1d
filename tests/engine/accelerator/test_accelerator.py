"""The engine on an accelerator: the CPU's figures on every path, no mixed devices, few waits, no memory twice.

All of it runs on the simulated card, in one other process: torch keeps a device that it was once taught.
"""

import math
import multiprocessing
from importlib.util import find_spec

import pytest

from code_rl.engine.losses import LOSSES
from tests.engine.accelerator.process import run_case
from tests.paths import ROOT

NAME, GIB = "simgpu", 2**30
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="no torch")


@pytest.fixture(scope="module")
def card():
    """Runs a case in the process that has the simulated card."""
    # Leaving the block ends the process at once.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield lambda *case: pool.apply(run_case, case)


def flat(numbers):
    """All numbers in a nested result, in order."""
    if isinstance(numbers, dict):
        return [each for key in sorted(numbers) for each in flat(numbers[key])]
    if isinstance(numbers, list):
        return [each for part in numbers for each in flat(part)]
    return [numbers]


def assert_same(ours, cpu):
    assert flat(ours) == [pytest.approx(each, rel=1e-5, abs=1e-5) for each in flat(cpu)]


@pytest.mark.long
def test_the_engine_sees_its_name_memory_and_number_type(card):
    found = card("facts")
    assert found == {
        "total": 3 * GIB,
        "used": 4 << 20,
        "free": pytest.approx(3 * GIB, rel=0.01),
        "name": "Simulated GPU",
        "dtype": "torch.bfloat16",
        "tokens": 8192,
        "after": 0,
    }


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "transformers"])
def test_a_step_with_each_loss_gives_the_figures_of_the_cpu(card, kind):
    losses = tuple(LOSSES) if kind != "qwen2" else ("gspo",)
    ours, cpu = (card("rl_step", kind, device, "float32", losses) for device in (NAME, "cpu"))
    assert ours["tokens"] == cpu["tokens"]
    assert_same(ours, cpu)


@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
def test_bfloat16_is_as_near_to_float32_as_on_the_cpu(card, kind):
    ours, cpu = (card("rounding", kind, device) for device in (NAME, "cpu"))
    assert 0 < ours <= 1.25 * cpu


def test_a_step_runs_in_bfloat16(card):
    found = card("rl_step", "qwen3", NAME, "bfloat16", ("ppo", "gspo", "cross_entropy"))
    assert all(math.isfinite(number) for number in flat(found))
    assert found["ppo"][1] > 0


def test_stops_filters_greedy_rows_and_scores_are_those_of_the_cpu(card):
    ours, cpu = (card("narrowed", device) for device in (NAME, "cpu"))
    assert ours["ends"] == cpu["ends"]
    assert set(cpu["ends"]) == {"stop", "length"}
    assert_same(ours["tokens"] + ours["scores"], cpu["tokens"] + cpu["scores"])


def test_a_checkpoint_goes_on_as_the_client_that_wrote_it(card, tmp_path):
    ours = card("resumed", NAME, str(tmp_path / "card"))
    assert ours["resumed"] == ours["second"]
    assert_same(ours, card("resumed", "cpu", str(tmp_path / "cpu")))


def test_an_export_has_the_tensors_of_the_cpu(card, tmp_path):
    ours = card("exported", NAME, str(tmp_path / "card"))
    assert ours
    assert_same(ours, card("exported", "cpu", str(tmp_path / "cpu")))


@pytest.mark.long
def test_a_run_with_kl_that_was_resumed_has_the_figures_of_a_whole_one_on_the_cpu(card, tmp_path):
    ours, cpu = (card("whole_run", *how) for how in ((NAME, str(tmp_path), (1, 2)), ("cpu", str(tmp_path), (2,))))
    assert len(ours) == 2
    assert any("kl_reference" in step for step in ours.values())
    assert ours.keys() == cpu.keys()
    for step in ours:
        assert ours[step].keys() == cpu[step].keys()
    assert_same(ours, cpu)


def test_a_server_gives_the_figures_of_the_cpu(card, tmp_path):
    ours, cpu = (card("served", device, str(tmp_path)) for device in (NAME, "cpu"))
    assert_same(ours, cpu)


def test_sampling_waits_at_most_once_a_step_and_holds_no_more_than_its_cells(card):
    found = card("counted_sampling")
    assert found["waits_per_step"] <= 1
    assert found["peak"] <= 1.1 * found["cells"]


def test_no_room_is_the_drivers_error(card):
    assert card("too_small") == "OutOfMemoryError"


@pytest.mark.parametrize("fault", ["an item per token", "a doubled cache"])
def test_a_planted_fault_exceeds_a_bound(card, fault):
    found = card("counted_sampling", fault)
    assert found["waits_per_step"] > 1 or found["peak"] > 1.1 * found["cells"]


def test_a_planted_tensor_on_the_wrong_device_is_refused(card):
    with pytest.raises(RuntimeError):
        card("counted_sampling", "a wrong device")


@pytest.mark.parametrize("plan", ["planned", "planned_transformers"])
def test_a_plan_is_within_a_tenth_of_the_peak_on_the_card(card, plan):
    found = card(plan)
    assert found["planned"] == pytest.approx(found["peak"], rel=0.1)
    assert found["fits"]
    assert found["rows"] >= 4


def test_a_plan_leaves_alone_what_other_processes_hold(card):
    alone, beside = (card("beside", GIB, others, False) for others in (0, GIB // 2))
    assert alone["trainer"] == beside["trainer"]
    assert beside["trainer"] + beside["caches"] <= GIB // 2
    assert "0.5" in beside["line"]


def test_a_plan_beside_vllm_counts_its_weights_and_working_memory_too(card):
    others, total = GIB, 8 * GIB
    alone, beside = (card("beside", total, others, vllm) for vllm in (False, True))
    assert alone["trainer"] == beside["trainer"]
    assert beside["trainer"] + beside["share"] <= total - others
    assert beside["share"] - beside["caches"] >= beside["weights"] + 2 * GIB
    assert 1 <= beside["rows"] < alone["rows"]
    assert "vLLM" in beside["line"]
    assert "vLLM" not in alone["line"]


@pytest.mark.long
def test_a_plan_beside_vllm_that_cannot_fit_names_it(card):
    assert "leave out sampler=vllm" in card("refused", GIB, True)
    assert "model_name" in card("refused", 1 << 20, True)


@pytest.mark.parametrize("vllm", [False, True])
@pytest.mark.parametrize(
    "size",
    [
        pytest.param("0.6B", marks=pytest.mark.long),
        pytest.param("1.7B", marks=pytest.mark.slow),
        pytest.param("4B", marks=pytest.mark.slow),
        pytest.param("8B", marks=pytest.mark.slow),
    ],
)
def test_the_page_of_one_gpu_has_what_the_plan_says(card, size, vllm):
    rows = [line for line in (ROOT / "docs" / "one-gpu.md").read_text().splitlines() if f"| Qwen3-{size} |" in line]
    assert rows[vllm].strip("| ").split(" | ")[1:] == card("cells", f"qwen3-{size.lower()}", vllm)


@pytest.mark.long
def test_a_run_gives_its_own_vllm_the_share_of_the_plan(card, tmp_path):
    total = 8 * GIB
    found = card("run_beside_vllm", str(tmp_path / "run"), total)
    assert "vLLM" in found["line"]
    assert found["left"] == 0
    assert 3 * GIB < float(found["options"]["gpu_memory_utilization"]) * total < 7.6 * GIB
    assert found["options"]["max_num_seqs"] == 256


@pytest.mark.long
def test_a_plan_that_cannot_fit_names_the_setting_that_would(card):
    for words in ("", "max_tokens_schedule=0:2048"):
        remedy = card("refused", 13 << 20, False, words).rpartition("give ")[2]
        assert (words.partition("=")[0] or "max_tokens") in remedy
        assert card("refused", 13 << 20, False, f"max_tokens=64 {remedy}") == ""
    assert "model_name" in card("refused", 1 << 20)
    assert card("refused", GIB) == ""
