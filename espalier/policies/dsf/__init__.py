"""DSF, EASF's distributed way to form an aggregation tree and to keep it whole.

Xu, Sun, Cui, Qi, Bilal, Dou, Cai, Crowcroft. Dynamic Optimization of Edge Aggregation Structures and Update
Frequencies for Efficient Distributed Hierarchical Model Training. IEEE Transactions on Mobile Computing.

=============  ==================================================================================
`thp`          Eq. (9): two-hop return probability, and who is a central node by it
`balance`      Eq. (8), Algorithms 1 and 2: which nodes change their cluster, which cluster to join
`central`      Eq. (1): the central node of a cluster; further levels where there are many clusters
`state`        what a device's agent remembers, and the numbers it goes by
`agent`        the agent: one state machine per device that talks with others by `Word` messages
`founding`     its first part: greet, elect, herald, choose, join
`transfer`     offers of transferable nodes, wishes, answers
`assembly`     a cluster picks its central node, at first and after its central node is gone
`ascent`       central nodes find each other and a parent, up to the root
`head`         the aggregator that a device runs for a cluster
`peer`         the device with its agent
=============  ==================================================================================
"""
