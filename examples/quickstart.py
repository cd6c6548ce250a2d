"""Train a small network on scikit-learn's digits: AdamW's loop, with Alice in AdamW's place."""

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
optimizer = Alice(model.parameters(), lr=1e-3, model=model)  # lr: AdamW's

for step in range(400):
    batch = train[torch.randint(len(train), (128,))]
    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])  # ahead of the position
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 99:
        model.eval()  # at the position
        correct = (model(images[test]).argmax(1) == labels[test]).float().mean()
        print(f"step {step + 1}: loss {loss.item():.4f}, held-out accuracy {correct:.1%}")
        model.train()

print(f"{optimizer.gradient_evaluations} gradients")
