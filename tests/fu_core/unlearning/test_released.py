"""Released: a certificate is about the samples that are left, and a federation that has more of them is refused."""

import pytest
import torch

from fu_core.errors import CertificateViolation
from fu_core.unlearning.baselines import certified_removal, descent_to_delete, langevin, noisy_retrain, rewind
from tests.certified_peers_lab import softmax, without

METHODS = {
    "certified removal": (certified_removal, certified_removal.Removal(sigma=100.0, epsilon=5.0)),
    "descent to delete": (descent_to_delete, descent_to_delete.DescentToDelete(samples=3, requests=3)),
    "rewind": (rewind, rewind.Rewind(training=20)),
    "langevin": (langevin, langevin.Langevin(samples=3, training=20)),
    "noisy retraining": (noisy_retrain, noisy_retrain.NoisyRetrain(sigma=1.0, training=20)),
    "output perturbation": (noisy_retrain, noisy_retrain.OutputPerturbation(training=20)),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_federation_that_still_has_what_was_deleted_is_refused(name):
    """Descent from it learned the first request again, and certified epsilon 1 for what was 2,583."""
    method, config = METHODS[name]
    f = softmax(l2=0.5)
    one, two = without(f, {0: torch.arange(3)}), without(f, {1: torch.arange(2)})
    first = method.release(f, method.prepare(f, config), one)
    with pytest.raises(CertificateViolation, match="f must be the federation before this request, 117 samples"):
        method.release(f, first.state, two)
    later = f.after(one)
    assert method.release(later, first.state, without(later, {1: torch.arange(2)})).model.isfinite().all()
