"""The meaning of the fields of config.flow, for configs.fields."""

FLOW = {
    "flow.eta": "Versions that sampling may run ahead of training. 0: experiments.grpo, bit for bit.",
    "flow.age": "The oldest that a trained row may be, in versions. Its oldest token counts; the trainer waits.",
    "flow.order": 'Groups of a batch. "ready": the oldest finished; "oldest"; "drop": ready, but none above eta.',
    "flow.max_running": "Groups that are sampled at once, at most. 0: as many as eta allows.",
    "flow.schedule": 'Clock of a run. "counted": decode calls or steps, the same bits always; "free": the wall clock.',
    "flow.train_ticks": "Decode calls beside one train step. In a counted schedule.",
    "flow.in_flight": 'Rows in flight at new weights. "interrupt": caches anew; "drain": end first; "keep": go on.',
    "flow.decode_steps": "Tokens per row of one decode call. 0: the engine's own, 64.",
    "flow.measure": "Score rows before the updates, for the sampler's gap by lag. Costs a forward if no term needs it.",
    "flow.samplers": "Processes that sample, each its share of every batch. In a counted schedule.",
    "flow.streaming": "Train on groups as they end: train.micro_batches parts of a batch, one division at its end.",
    "flow.columns": "Judge and score a row when it has ended, before its group has (AsyncFlow). With flow.streaming.",
    "flow.balance": "Order a part's groups so that each device's rows have as many tokens. With flow.streaming.",
    "flow.timeout_s": "Seconds that a process waits for progress of another one. Then it ends with an error.",
}
