"""The verbs as functions of their settings. They raise their errors, which `main` would print."""

from code_rl.cli.main import VERBS

controls_command = VERBS["controls"].run
export_command = VERBS["export"].run
train_command = VERBS["train"].run
