"""Many clients' mini-batches as one: the merged-batch engine.

K clients' batches are concatenated, so activations are ordinary ``[K·B, ...]`` tensors and everything
without parameters runs as ordinary PyTorch. Parameters are stacked ``[K, ...]``; the user's module
holds stand-ins for them, and each call that meets a stand-in is answered by a per-client kernel.

    plan.py      which axis of which tensor runs over the clients' samples, learnt from two dry runs
    stacked.py   the stacked tensors, and the objects a module finds in place of its parameters
    replica.py   the module with its stand-ins
    products.py  batched products that do not depend on a client's place
    mode.py      the interception of torch calls: rules, the per-client loop, what is refused
    layers.py, conv.py, lstm.py, attention.py, pool.py   the rules
    dropout.py   each client's own dropout masks
    fusion.py    convolution, ReLU and pooling as one
    chain.py     models that are chains of layers: all steps of a client in one native call
    probe.py     may this module be merged at all? compared with one-by-one training before it is used
    engine.py    the training of one chunk of jobs

A client's bits do not depend on its chunk, for every bundled model and for whatever the rules compute. What
a user's module computes between parameters is ordinary PyTorch on the merged batch; there a client's place
can still show in the last bit of a sum over time in time-major layout, and of batched products of odd sizes.
"""
