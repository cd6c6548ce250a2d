"""Train a small ReLU network on scikit-learn's digits with Alice, and see which bound ruled."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from aliceopt import Alice

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
held_out = torch.arange(len(images)) % 5 == 0
train, test = (~held_out).nonzero().squeeze(1), held_out.nonzero().squeeze(1)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
# "fixed": no coordinate moves more than lr a step; where curvature is known it moves less.
optimizer = Alice(model.named_parameters(), lr=0.03, limit="fixed", model=model)

for step in range(400):
    batch = train[torch.randint(len(train), (128,))]
    for _ in optimizer.evaluations():  # 3 rounds on a full step, 1 on a quick one
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
    optimizer.step()
    if step % 100 == 99:
        correct = (model(images[test]).argmax(1) == labels[test]).float().mean()
        print(f"step {step + 1}: loss {loss.item():.4f}, held-out accuracy {correct:.1%}")

report = optimizer.telemetry()
print(f"{report.full_steps} full and {report.quick_steps} quick steps, ", end="")
print(f"{report.gradient_evaluations} gradients")
for name, block in report.blocks.items():
    print(f"layer {name}: {block.at_upper:.0%} at the upper bound, ", end="")
    print(f"{block.quasi_newton:.0%} on the quasi-Newton step, glass {block.glass_share:.0%}")
