"""DSF, EASF's distributed way to form an aggregation tree and to keep it whole: leader election, group membership.

Xu, Sun, Cui, Qi, Bilal, Dou, Cai, Crowcroft. Dynamic Optimization of Edge Aggregation Structures and Update
Frequencies for Efficient Distributed Hierarchical Model Training. IEEE Transactions on Mobile Computing.

============  ==========================================================================================
`formulas`    Eq. 1, 8 and 9, Algorithms 1 and 2, as pure functions
`messages`    every kind of message, timer and phase: who sends it to whom, when
`state`       what an agent remembers
`base`        what the parts of an agent share, and what they ask of each other
`formation`   the first clusters: hello, election by probability, adverts, exchange of members
`membership`  newcomers, joining, leaving, views sent to members, heartbeats
`election`    a cluster votes on its central node; succession of one that is gone
`views`       installing a view: to follow, to lead, to step down; the root
`tree`        adjacent clusters, the oldest tree, parents, dissolving a tree
`agent`       the whole agent, and the device that has it: begin here
`head`        the aggregator that a device runs for a cluster
============  ==========================================================================================

Glossary (the paper's words, else those of election and group membership):

central node  leads a cluster and aggregates for it; ``centre`` in code
cluster       devices (level 0), or central nodes of the level below, with one central node; named by a number, the
              older the smaller
level         of a cluster: 0 for devices; the central node of a cluster of level h is a member at level h + 1
member        of a cluster; its central node is one of its members
view          what a member knows of its cluster; views are ordered by term, initiator, version
term          number of a cluster's elections so far; of two elections in one term the smaller initiator's counts
initiator     who holds an election: asks for votes, counts, sends the outcome
vote          a member's delays to the other members; the smallest sum wins (Eq. 1)
successors    a cluster's members in the order in which they hold the next election if the central node is gone
leaderless    of a view: the central node is gone, its succession is not decided
applicant     who has joined a cluster while an election was due
parent        of a cluster's central node: the central node one level up
root          the central node without a parent: its aggregator begins the rounds
tree          all clusters below one root; named by a number, the older the smaller; of two that meet the older stays
adjacent      of clusters: some of their devices are neighbours (have a direct link), as beacons tell
sweep         one turn of the exchange of members: offers, requests, replies
patience      seconds that an agent waits for messages that may still come: the unit of its timers
probe         finds out delay and hops to a host, and whether it answers
"""
