"""Alice with Accelerate: the usual loop, with one more line in it."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from aliceopt import Alice
from aliceopt.integrations.accelerate import prepare

torch.manual_seed(0)
x = torch.randn(1024, 8)
data = TensorDataset(x, x[:, :1] * x[:, 1:2] + x[:, 2:3].abs())
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
options = {"lr": 3e-3, "glass": True, "hessian": "abs", "max_grad_norm": 1.0}
optimizer = Alice(model.named_parameters(), model=model, **options)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6 * 16)
loader = DataLoader(data, batch_size=32, shuffle=True)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer, loader, scheduler = prepare(accelerator, model, optimizer, loader, scheduler)
for epoch in range(6):
    total = 0.0
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            for _ in optimizer.evaluations():  # 3 rounds on a measuring step, 1 on a quick one
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")
report = optimizer.telemetry()
steps = report.measuring_steps + report.quick_steps
print(f"{steps} steps, {report.gradient_evaluations} gradients")
