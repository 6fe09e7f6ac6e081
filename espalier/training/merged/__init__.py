"""Many clients' mini-batches as one: the merged-batch engine.

K clients' batches are concatenated, so activations are ordinary ``[K·B, ...]`` tensors and everything
without parameters runs as ordinary PyTorch. Parameters are stacked ``[K, ...]``; the user's module
holds stand-ins for them, and each call that meets a stand-in is answered by a per-client kernel.

    plan.py      which axis of which tensor runs over the clients' samples, learnt from two dry runs
    standin.py   the objects a module finds in place of its parameters
    slots.py     the stacked tensors behind them
    mode.py      the interception of torch calls: rules, the per-client loop, what is refused
    linear.py, conv.py, norm.py, embedding.py, lstm.py, attention.py, dropout.py, pool.py   the rules
    probe.py     may this module be merged at all? compared with one-by-one training before it is used
    engine.py    the training of one chunk of jobs
"""
