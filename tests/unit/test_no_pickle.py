"""The check of `make check` that nothing loads a pickle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.no_pickle import findings, main

ROOT = Path(__file__).parents[2]

PLANTED = [
    "import pickle",
    "import pickle as p; p.loads(b'')",
    "from pickle import loads",
    "import _pickle",
    "import dill",
    "import cloudpickle",
    "import joblib",
    "from joblib import load",
    "import shelve",
    "import ray",
    "import importlib; importlib.import_module('ray.serve')",
    "import marshal",
    "import datasets",
    "from datasets import load_dataset",
    "import multiprocessing.connection",
    "from multiprocessing import connection",
    "from multiprocessing.connection import Client",
    "import multiprocessing as mp; mp.Pipe()[0].recv()",
    "from multiprocessing import Pipe",
    "import multiprocessing; multiprocessing.connection.Client('a').recv()",
    "import torch; torch.load('a')",
    "import torch as t; t.load('a', weights_only=True)",
    "from torch import load as read; read('a')",
    "import torch; torch.save({}, 'a')",
    "import torch; torch.jit.load('a')",
    "from torch import jit; jit.load('a')",
    "import torch.jit; torch.jit.load('a')",
    "import torch; torch.hub.load('a', 'b')",
    "import torch; torch.serialization.load('a')",
    "import torch.package",
    "import torch; loader = torch.load",
    "import torch; getattr(torch, 'load')('a')",
    "import numpy; numpy.load('a')",
    "import numpy as np; np.load('a')",
    "import numpy as np; np.load('a', allow_pickle=True)",
    "import numpy as np; np.load('a', allow_pickle=bool(0))",
    "import numpy as np; read = np.load",
    "from numpy import load; load('a')",
    "import numpy as np; np.savez('a', x=1)",
    "def f():\n    import numpy as n\n    return n.load('a')",
    "from x import y; y.frombuffer(allow_pickle=True)",
    "import x; x.load_file('a', weights_only=False)",
    "import x; x.from_pretrained('a', trust_remote_code=True)",
    "import pandas as pd; pd.read_pickle('a')",
    "from pandas import read_pickle",
    "frame = object(); frame.to_pickle('a')",
    "import yaml; yaml.load('a', yaml.Loader)",
    "import yaml; yaml.unsafe_load('a')",
    "import importlib; importlib.import_module('pickle')",
    "from importlib import import_module; import_module('joblib')",
    "__import__('pickle')",
    "import torch.distributed.checkpoint as dcp; dcp.load({})",
    "import torch.distributed.checkpoint as dcp; dcp.async_save({})",
    "from torch.distributed.checkpoint.state_dict_loader import load as read; read({})",
    "from torch.distributed import checkpoint; checkpoint.FileSystemReader('a')",
    "from torch.distributed.checkpoint import FileSystemReader as Reader; Reader('a')",
    "import torch.distributed.checkpoint.filesystem as fs; fs.FileSystemWriter('a')",
    "import torch.distributed as dist; dist.broadcast_object_list([])",
    "import torch.distributed as dist; dist.all_gather_object([], 1)",
    "import torch.distributed as dist; dist.gather_object(1)",
    "import torch; torch.distributed.scatter_object_list([], [])",
    "from torch import distributed; distributed.send_object_list([], 1)",
    "from torch.distributed import recv_object_list as receive; receive([])",
    "from torch.distributed.distributed_c10d import broadcast_object_list as b; b([])",
    "import torch; getattr(torch.distributed, 'gather_object')(1)",
    "import torch; torch.export.load('a')",
    "import torch.export as e; e.save(1, 'a')",
    "import torch; torch.hub.load_state_dict_from_url('a')",
    "import multiprocessing; multiprocessing.Queue()",
    "import multiprocessing as mp; mp.Pool(2)",
    "import multiprocessing as mp; mp.Process(target=print)",
    "import multiprocessing as mp; mp.Manager()",
    "from multiprocessing.pool import Pool as P; P(2)",
    "from multiprocessing.queues import SimpleQueue as S; S()",
    "import multiprocessing; context = multiprocessing.get_context('spawn').Queue()",
    "import torch.multiprocessing as mp; mp.spawn(print)",
    "from torch import multiprocessing; multiprocessing.Queue()",
    "from concurrent.futures import ProcessPoolExecutor as Pool; Pool(2)",
    "import concurrent.futures; concurrent.futures.ProcessPoolExecutor()",
    "from concurrent import futures; futures.ProcessPoolExecutor()",
    "from concurrent.futures.process import ProcessPoolExecutor as Pool; Pool()",
    "from sklearn.datasets import fetch_openml as fetch; fetch('a')",
    "import sklearn.datasets; sklearn.datasets.fetch_20newsgroups()",
    "from sklearn import datasets as d; d.fetch_california_housing()",
    "import joblib; joblib.load('a')",
    "import joblib as j; j.load('a')",
]
ALLOWED = [
    "import numpy as np; np.load('a', allow_pickle=False)",
    "import numpy as np; np.loadtxt('a')",
    "import json; json.load(open('a'))",
    "from regard.bundle import load; load('run')",
    "import safetensors.torch; safetensors.torch.load(b'')",
    "import yaml; yaml.safe_load('a')",
    "import tomllib; tomllib.load(open('a', 'rb'))",
    "import torch; torch.jit.script",
    "import torch.distributed as dist; dist.broadcast(x, src=0)",
    "from concurrent.futures import ThreadPoolExecutor as Pool; Pool()",
    "from sklearn.datasets import load_digits; load_digits()",
    "import multiprocessing; multiprocessing.cpu_count()",
    "import torch; torch.export.export",
    "text = 'import pickle; torch.load(allow_pickle=True)'  # pickle",
    "from regard import datasets_page",
    "load = len; load('a')",
]


@pytest.mark.parametrize("source", PLANTED)
def test_every_planted_call_is_found(source: str):
    found = findings(source)
    if source.startswith("from pandas") or source == "from multiprocessing import Pipe":
        found = findings(f"{source}\n{source.split()[-1]}('a')")  # the import alone does nothing
    assert found


@pytest.mark.parametrize("source", ALLOWED)
def test_what_is_harmless_is_not(source: str):
    assert findings(source) == []


def test_the_line_is_named(tmp_path: Path, capsys):
    (tmp_path / "a.py").write_text("x = 1\nimport pickle\n")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{tmp_path}/a.py:2: import of pickle, which loads pickles\n"
    assert main([str(tmp_path / "empty")]) == 2


def test_ray_is_used_in_few_files(tmp_path: Path, capsys):
    for name in ("fleet/worker.py", "fleet/run.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import ray\nimport pickle\n")
    assert main([str(tmp_path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines if "import of ray" in line] == [
        f"{tmp_path}/fleet/run.py"
    ]
    assert sum("pickle, which" in line for line in lines) == 2


def test_the_package_has_none(capsys):
    assert main([str(ROOT / "regard")]) == 0, capsys.readouterr().err


def test_make_check_runs_it():
    assert "-m tests.no_pickle regard" in (ROOT / "Makefile").read_text()
