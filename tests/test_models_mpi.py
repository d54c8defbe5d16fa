"""Every network by gossip on two ranks: under mpiexec the same bits as in the virtual cluster, statistics included."""

from __future__ import annotations

import json

import pytest
from conftest import ROOT

import gossipgrad as gg
from gossipgrad import bench

STEPS = 3
NARROW, IN_BFLOAT16 = "bfloat16", ("lenet", "resnet18", "char_lstm", "char_gpt")
IMPORT = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); import test_models_mpi; "


def networks():
    """Each network as narrow as it can be, and its loss."""
    models, image = gg.models, (3, 35, 47)
    found = {
        "lenet": models.lenet(input=(1, 17, 20)),
        "cifar_quick": models.cifar_quick(input=(3, 17, 21)),
        "alexnet": models.alexnet(7, (3, 65, 79), hidden=24, width=8),
        "googlenet": models.googlenet(5, (3, 33, 43), width=8),
        "published": models.googlenet(5, (3, 81, 90), form="published", width=8),
        "speech_dnn": models.speech_dnn(99, 41, (30,) * 6),
        "char_lstm": models.char_lstm(23, 11, embedding=13, hidden=20, dropout=0.2),
        "char_gpt": models.char_gpt(23, 11, layers=2, heads=3, width=21, dropout=0.2),
    }
    for depth in (11, 13, 16, 19):
        for norm in (False, True):
            make = getattr(models, f"vgg{depth}")
            found[f"vgg{depth}{norm}"] = make(5, image, batch_norm=norm, hidden=16, width=8)
    for depth in (18, 34, 50, 101):
        found[f"resnet{depth}"] = getattr(models, f"resnet{depth}")(5, image, width=4)
    for depth in (20, 32, 56):
        found[f"resnet{depth}"] = getattr(models, f"resnet{depth}")(5, (3, 15, 18), width=4)
    return [("mlp", models.mlp(), "binary_cross_entropy")] + [(k, v, "cross_entropy") for k, v in found.items()]


def digests(comm=None):
    """Of all ranks' weights and statistics after some steps, by network; None on other ranks than the first."""
    found = {}
    each = [(name, net, loss, "float32") for name, net, loss in networks()]
    if gg.launch.environment.core_info()["isa"] in ("avx512", "amx"):
        each += [(f"{name} {NARROW}", net, loss, NARROW) for name, net, loss in networks() if name in IN_BFLOAT16]
    for name, net, loss, dtype in each:
        trainer = gg.Trainer(net, loss=loss, optimizer=gg.SGD(lr=0.01, momentum=0.9), comm=comm, dtype=dtype)
        rank, ranks = trainer.rank, range(trainer.size) if comm else [trainer.rank]
        for step in range(STEPS):
            batches = [bench.synthetic_batch(net, loss, 3 + r, seed=10 * step + r) for r in ranks]
            x, y = map(list, zip(*batches, strict=True))
            trainer.train_step(*((x, y) if comm else (x[0], y[0])))
        found[name] = trainer.weights_sha256()
        trainer.close()
    return None if rank else found


@pytest.mark.full
def test_every_network_has_the_bits_of_the_virtual_cluster(mpirun):
    script = IMPORT + "found = test_models_mpi.digests(); import json; print(json.dumps(found) if found else '')"
    (found,) = (json.loads(line) for line in mpirun(2, script).stdout.splitlines() if line.startswith("{"))
    alone = digests(gg.VirtualCluster(2))
    assert len(found) >= len(networks()) and list(found) == list(alone)
    for name, sums in alone.items():
        assert len(sums) == len(set(sums)) == 2, (
            f"{name}: both ranks have the same weights, though their batches differ"
        )
        assert found[name] == sums, name
