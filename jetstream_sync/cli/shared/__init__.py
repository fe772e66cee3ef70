"""What the commands share: options, login, output, prompts and the configs of all kinds."""
