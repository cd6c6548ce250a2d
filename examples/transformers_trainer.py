"""Alice in Hugging Face's Trainer: a tiny GPT-2, not pretrained, learns to count."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

from aliceopt.integrations.transformers import AliceTrainer

set_seed(0)
WORDS = 16
config = GPT2Config(
    vocab_size=WORDS,
    n_positions=32,
    n_embd=32,
    n_layer=2,
    n_head=2,
    bos_token_id=None,
    eos_token_id=None,
    loss_type="ForCausalLM",
)
starts = torch.randint(WORDS, (512, 1))
counting = (starts + torch.arange(24)) % WORDS
data = [{"input_ids": row, "labels": row} for row in counting]

with tempfile.TemporaryDirectory() as folder:
    trainer = AliceTrainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=folder,
            learning_rate=3e-3,
            num_train_epochs=3,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            logging_steps=12,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=data,
        alice={"glass": True, "hessian": "abs"},
    )
    result = trainer.train()
alice = trainer.optimizer.optimizer
print(f"{result.global_step} steps, {alice.gradient_evaluations} gradients")
