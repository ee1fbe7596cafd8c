"""The emulation catches each planted defect in the modes that can see it, and lets sound kernels pass in all."""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.cudasim.device import FINITE, NAN, EmulatedDevice, KernelDefect, Order
from tests.cudasim.sanitized import Mode, run_sanitized
from tests.cudasim.scenes import ORDERS, POISON, SCENES, Scene, WrongAnswer
from tests.cudasim.sound import SOUND


def caught(*modes: str) -> list[Any]:
    return [
        pytest.param(scene, mode, id=f"{scene.kernel}-{mode}")
        for scene in SCENES
        for mode in scene.caught_by
        if mode in modes
    ]


@pytest.mark.parametrize(("scene", "order"), caught(*ORDERS))
def test_a_plain_run_catches(scene: Scene, order: Order) -> None:
    with pytest.raises((KernelDefect, WrongAnswer)) as error:
        scene.play(EmulatedDevice(order, seed=1))
    assert re.search(scene.says, str(error.value))


@pytest.mark.parametrize("order", ORDERS)
def test_a_race_may_give_the_right_answer_in_every_order_of_a_plain_run(order: Order) -> None:
    """Which is why the thread sanitizer is needed: it reports this scene."""
    (scene,) = (scene for scene in SCENES if scene.kernel == "harmless_looking_rewrite")
    scene.play(EmulatedDevice(order, seed=1))


@pytest.mark.parametrize(("scene", "mode"), caught(*POISON))
def test_fresh_memory_of_ordinary_numbers_catches(scene: Scene, mode: str) -> None:
    with pytest.raises(WrongAnswer, match=scene.says):
        scene.play(EmulatedDevice(poison=FINITE))


def test_fresh_memory_of_nan_hides_an_output_that_is_never_written() -> None:
    """Which is why parity is tested with ordinary numbers in it as well."""
    (scene,) = (scene for scene in SCENES if scene.kernel == "warm_up_never_written")
    scene.play(EmulatedDevice(poison=NAN))


@cache
def sanitizer_reports(mode: Mode) -> dict[str, dict[str, Any]]:
    done = run_sanitized(mode, "tests.cudasim.scenes")
    assert done.returncode == 0, done.stderr[-4000:]
    reports: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return reports


def assert_caught(scene: Scene, mode: Mode) -> None:
    outcome = sanitizer_reports(mode)[scene.kernel]
    assert outcome["status"] != 0, f"{scene.kernel} passed unseen"
    assert re.search(scene.says, outcome["report"]), outcome["report"][-4000:]


def assert_clean(name: str, mode: Mode) -> None:
    outcome = sanitizer_reports(mode)[name]
    # Where the run time switches stacks through ucontext (not x86-64), address sanitizer says once that it does.
    report = re.sub(r".*doesn't fully support makecontext.*\n", "", outcome["report"])
    assert (outcome["status"], report) == (0, "")


@pytest.mark.parametrize(("scene", "mode"), caught("address,undefined"))
def test_address_and_undefined_behaviour_sanitizers_catch(scene: Scene, mode: Mode) -> None:
    assert_caught(scene, mode)


@pytest.mark.sanitize
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("scene", "mode"), caught("thread"))
def test_thread_sanitizer_catches(scene: Scene, mode: Mode) -> None:
    assert_caught(scene, mode)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("play", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass_in_every_order(play: Callable[[EmulatedDevice], None], workers: int, order: Order) -> None:
    play(EmulatedDevice(order, workers=workers, seed=5))


@pytest.mark.parametrize("name", SOUND)
def test_sound_kernels_pass_the_address_and_undefined_behaviour_sanitizers(name: str) -> None:
    assert_clean(name, "address,undefined")


@pytest.mark.sanitize
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SOUND)
def test_sound_kernels_pass_the_thread_sanitizer(name: str) -> None:
    assert_clean(name, "thread")
