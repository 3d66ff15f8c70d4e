"""The companion: what it takes to reproduce the papers with fu_core. It is installed with `fu_core[papers]`."""

from importlib.util import find_spec

# What the extra brings and the library does not, by the names it is imported under.
NEEDS = (
    "IPython", "PIL", "ipykernel", "ipywidgets", "joblib", "jupyter_client", "jupyterlab", "matplotlib", "nbclient",
    "nbformat", "pandas", "papermill", "psutil", "pydantic", "safetensors", "seaborn", "threadpoolctl", "torchvision",
    "traitlets", "yaml",
)  # fmt: skip

if missing := [name for name in NEEDS if find_spec(name) is None]:
    raise ImportError(f'fu_papers needs {", ".join(missing)}: run `pip install "fu_core[papers]"`')
