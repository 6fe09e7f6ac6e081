"""DSF, EASF's distributed way to form an aggregation tree and to keep it whole.

Xu, Sun, Cui, Qi, Bilal, Dou, Cai, Crowcroft. Dynamic Optimization of Edge Aggregation Structures and Update
Frequencies for Efficient Distributed Hierarchical Model Training. IEEE Transactions on Mobile Computing.

The formulas are pure functions: `thp` (Eq. 9), `balance` (Eq. 8, Algorithms 1 and 2), `central` (Eq. 1 and further
levels). The protocol is a state machine per device, the `agent`, whose state is in `state`; its parts are

============  =======================================================================================
`founding`    greet, elect, herald, choose: the first clusters
`joining`     a newcomer picks a cluster and joins
`transfer`    central nodes offer, wish for and hand over members
`membership`  what a central node knows of its cluster, and tells
`assembly`    the vote on a cluster's central node
`seats`       taking a seat: to follow, to lead, to step down
`trees`       who adjoins whom, and which trees there are
`ascent`      central nodes find a parent, up to the root
`absence`     somebody is gone: striking off, succession
`pulse`       a slow check that finds what went wrong unnoticed
============  =======================================================================================

`peer` is the device with its agent, `head` the aggregator that a device runs for a cluster.
"""
