"""Methods that choose or remember prompts, each on a task: `config.sample.prompts` and `config.sample.memory`."""
