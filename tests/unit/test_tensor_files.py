"""Tensors whose rows are in the files of several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.checkpoint import shard_name
from regard.errors import BundleError
from regard.weights import TensorFiles, write_tensors

WHOLE = {
    "matrix": torch.arange(21.0).reshape(7, 3),
    "one_row": torch.tensor([5.0]),
    "number": torch.tensor(11.0),
}


@pytest.fixture(params=[1, 2, 3, 5, 11])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> TensorFiles:
    """As FSDP cuts them: later processes may have fewer rows, or none."""
    world = request.param
    paths = []
    for rank in range(world):
        part = {}
        for name in ("matrix", "one_row"):
            size = -(-len(WHOLE[name]) // world)
            part[name] = WHOLE[name][rank * size : (rank + 1) * size].contiguous()
        if rank == 0:
            part["number"] = WHOLE["number"]
        paths.append(tmp_path / shard_name("weights.safetensors", rank, world))
        write_tensors(paths[-1], part)
    return TensorFiles(tuple(paths))


def test_the_whole_is_read(files: TensorFiles):
    tensors = files.read()
    assert tensors.keys() == WHOLE.keys()
    assert all(torch.equal(tensors[name], WHOLE[name]) for name in WHOLE)


def test_any_rows_are_read(files: TensorFiles):
    with files.opened() as saved:
        assert saved.names == WHOLE.keys()
        for name, tensor in WHOLE.items():
            assert saved.shape(name) == tuple(tensor.shape)
            assert torch.equal(saved.whole(name), tensor)
        for start in range(8):
            for stop in range(start, 8):
                assert torch.equal(saved.rows("matrix", start, stop), WHOLE["matrix"][start:stop])


def test_a_missing_file_is_an_error(files: TensorFiles):
    files.paths[-1].unlink()
    with pytest.raises(BundleError, match="a file is missing"), files.opened():
        pass
    with pytest.raises(BundleError, match=f"{files.paths[-1].name}: a file is missing"):
        files.read()
    with pytest.raises(BundleError, match=f"{files.paths[-1].name}: a file is missing"):
        _ = files.size


def test_a_file_that_is_no_safetensors_is_an_error(files: TensorFiles):
    files.paths[0].write_bytes(b"no")
    with pytest.raises(BundleError, match="damaged: not a safetensors file"), files.opened():
        pass
