"""The page for one's own data, model, method and judge: its script runs as it is printed, and says what it should."""

import re
import subprocess
import sys

from fu_papers.lab.paths import ROOT

PAGE = (ROOT / "docs" / "own.md").read_text(encoding="utf-8")


def test_the_script_of_the_page_runs_and_tells_who_knows_what(tmp_path):
    code = "\n\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    (tmp_path / "own.py").write_text(code, encoding="utf-8")
    ran = subprocess.run([sys.executable, "own.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    told = re.findall(r"^(.+?) +knows +([\d.]+) %, members +([\d.]+) %, (\d+) images$", ran.stdout, flags=re.MULTILINE)
    assert [name for name, *_ in told] == ["Original", "Two rounds", "PUF-Special", "FedEraser", "PGA", "Retrain"]
    images = {name: int(count) for name, *_, count in told}
    assert images["Original"] == 0
    assert 0 < images["Two rounds"] < images["Retrain"] == 20 * 4 * 60
    known = {name: float(share) for name, share, *_ in told}
    members = {name: float(share) for name, _, share, _ in told}
    assert known["Retrain"] == members["Retrain"] == 0  # of a class that nobody else has
    assert known["Original"] > 50
    assert members["Original"] > 10


def test_pretrained_weights_are_joined_as_the_page_says():
    import torch
    from torch import nn

    from fu_core.models.flat import FlatModel

    module = nn.Linear(3, 2)
    model = FlatModel(module)
    w = model.joined(module.state_dict())
    x = torch.ones(1, 3)
    assert torch.equal(model.logits(w, x), module(x))
