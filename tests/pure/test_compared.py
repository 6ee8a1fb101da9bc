"""When too little was compared to call two runs equal."""

from keras_parallel.testing._compared import Compared
from keras_parallel.testing._one_step import Difference


def compared(*steps):
    found = Compared()
    for step, differences in enumerate(steps):
        for difference in differences:
            found.add(difference, step + 1)
    return found


def log(name="loss", **fields):
    return Difference(name, "log", 0.0, **fields)


def weight(name, difference=0.0, **fields):
    return Difference(name, "weight", difference, **fields)


def test_enough():
    noise = weight("bias", is_noise=True)
    found = compared([log(), weight("kernel"), noise])
    assert found.gap() is None and found.left_out() == ("bias",)


def test_the_loss_in_no_step():
    noise = log(is_noise=True)
    assert "'loss' was compared in no step" in str(compared([noise]).gap())
    assert compared([noise], [log()]).gap() is None
    # Any log may be the loss where none has that name.
    assert "'d_loss'" in str(compared([log("d_loss", is_noise=True)]).gap())
    assert compared([log("acc", is_noise=True), log()]).gap_of_loss() is None


def test_the_loss_is_not_finite_in_one_step():
    found = compared([log()], [log(is_vacuous=True)])
    assert "'loss' is not finite on one device from step 2" in str(found.gap())
    assert compared([log("acc", is_vacuous=True), log()]).gap_after() is None


def test_most_tensors_in_no_step():
    noise = [weight(name, is_noise=True) for name in "ab"]
    others = [Difference(name, "state", 0.0) for name in "cdefg"]
    found = compared([log(), weight("w"), *noise, *others])
    assert found.gap_of_loss() is None
    assert "2 of 3 weights" in str(found.gap())
    assert compared([log(), weight("w"), *noise[:1]]).gap() is None


def test_what_is_wrong_is_not_left_out():
    noise = weight("kernel", is_noise=True)
    found = compared([noise], [weight("kernel", 0.5)])
    assert found.left_out() == ()
    found = compared([noise], [weight("kernel")], [noise])
    assert found.left_out() == ("kernel in steps 1, 3",)
    found = compared([weight("kernel", is_vacuous=True)])
    assert found.left_out() == ("kernel (not finite)",)
