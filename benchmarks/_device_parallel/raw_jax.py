"""What raw JAX needs for two branches that nothing joins.

One compiled program for each branch: forward pass, mean squared error,
gradients and the update of SGD. The layers are those of Keras, run by
`stateless_call`. A step sends the batches from the host, as one call of
`jax.device_put` for each device, dispatches the programs one after the other,
and waits for all that they return.
"""

import functools

import jax
import jax.numpy as jnp
import keras

from _device_parallel.models import LEARNING_RATE


class RawBranches:
    """The branches of a plain model, each on a device of its own.

    Args:
        model: The model; it stays as it is.
        devices: One for each branch.
    """

    def __init__(self, model, devices):
        self._devices = devices
        self.weights = []
        self._steps = []
        for x, y, device in zip(model.inputs, model.outputs, devices):
            branch = keras.Model(x, y)
            weights, others = jax.device_put(
                [
                    [jnp.array(v.value) for v in kind]
                    for kind in (
                        branch.trainable_variables,
                        branch.non_trainable_variables,
                    )
                ],
                device,
            )
            self.weights.append(weights)
            step = functools.partial(_step, branch)
            self._steps.append((jax.jit(step, donate_argnums=0), others))

    def step(self, x, y, only=None):
        """One step of all branches, or of the one of index `only`.

        Returns:
            The loss of each branch that ran.
        """
        wanted = range(len(self._steps)) if only is None else [only]
        batches = {
            i: jax.device_put((x[i], y[i]), self._devices[i]) for i in wanted
        }
        losses = []
        for i, batch in batches.items():
            run, others = self._steps[i]
            self.weights[i], loss = run(self.weights[i], others, *batch)
            losses.append(loss)
        jax.block_until_ready((self.weights, losses))
        return losses


def _step(branch, weights, others, x, y):
    def loss_of(weights):
        predicted, _ = branch.stateless_call(weights, others, x, training=True)
        return jnp.mean(jnp.square(y - predicted))

    loss, gradients = jax.value_and_grad(loss_of)(weights)
    new = [w - LEARNING_RATE * g for w, g in zip(weights, gradients)]
    return new, loss
