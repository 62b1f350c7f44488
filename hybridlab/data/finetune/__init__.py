"""The tasks of `hybridlab finetune`: their files, examples and tokens."""
