"""PyTorch DDP over Gloo: `python torch_worker.py PEER DEVICES [RANK FILE]`.

Rank 0 takes the orders, starts the other ranks, and passes each order on.
"""

import json
import os
import subprocess
import sys
import tempfile

import torch
import torch_models
from serving import compile_seconds
from serving import peak_memory
from serving import serve
from serving import timed
from torch.nn.parallel import DistributedDataParallel
from workloads import Workload

DEVICES = int(sys.argv[2])


class TorchRunner:
    """One rank. It computes its share of the rows of each batch."""

    def __init__(self, rank, file):
        self._rank = rank
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{file}", rank=rank, world_size=DEVICES
        )

    def start(self, workload):
        workload = self._workload = Workload.of(workload)
        torch.manual_seed(0)
        self._shuffling = torch.Generator().manual_seed(0)
        self._x, self._y = map(torch.from_numpy, workload.data())
        if workload.classes:
            self._y = self._y.long()
        if len(workload.shape) == 3:
            # Channels come first in PyTorch.
            self._x = self._x.movedim(-1, 1).contiguous()
        self._model = DistributedDataParallel(torch_models.make(workload))
        self._loss = (
            torch.nn.CrossEntropyLoss()
            if workload.classes
            else torch.nn.MSELoss()
        )
        self._optimizer = torch.optim.Adam(
            self._model.parameters(), lr=1e-3, eps=1e-7
        )
        seconds = compile_seconds(lambda: self._epoch(workload.batch))
        parameters = list(self._model.parameters())
        return {
            "compile_seconds": seconds,
            "trainable_bytes": sum(4 * p.numel() for p in parameters),
            "variables": len(parameters),
        }

    def turn(self):
        return timed(self._turn, self._workload.steps)

    def memory(self):
        return {"bytes": peak_memory()}

    def versions(self):
        return {"torch": torch.__version__}

    def _turn(self):
        for _ in range(self._workload.epochs):
            self._epoch(self._workload.rows)

    def _epoch(self, rows):
        batch = self._workload.batch
        share = batch // DEVICES
        total = torch.zeros(())
        # As `fit` does by default; all ranks draw the same order.
        order = torch.randperm(rows, generator=self._shuffling)
        for start in range(self._rank * share, rows, batch):
            mine = order[start : start + share]
            self._optimizer.zero_grad()
            loss = self._loss(self._model(self._x[mine]), self._y[mine])
            loss.backward()
            self._optimizer.step()
            total += loss.detach()
        return total.item()


class Leader:
    """Rank 0, which passes orders on to the others."""

    def __init__(self):
        file = os.path.join(tempfile.mkdtemp(), "rendezvous")
        self._others = [
            subprocess.Popen(
                [sys.executable, __file__, *sys.argv[1:3], str(rank), file],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(1, DEVICES)
        ]
        self._mine = TorchRunner(0, file)

    def start(self, workload):
        return self._all("start", workload=workload)[0]

    def turn(self):
        replies = self._all("turn")
        return {
            "seconds": max(r["seconds"] for r in replies),
            "core_seconds": sum(r["core_seconds"] for r in replies),
        }

    def memory(self):
        return {"bytes": sum(r["bytes"] for r in self._all("memory"))}

    def versions(self):
        return self._mine.versions()

    def _all(self, verb, **order):
        for other in self._others:
            print(json.dumps({"do": verb, **order}), file=other.stdin)
            other.stdin.flush()
        mine = getattr(self._mine, verb)(**order)
        return [mine, *(json.loads(o.stdout.readline()) for o in self._others)]


if __name__ == "__main__":
    # As `torchrun` does: the ranks share the cores.
    torch.set_num_threads(1)
    if len(sys.argv) > 3:
        serve(TorchRunner(int(sys.argv[3]), sys.argv[4]))
    else:
        serve(Leader())
