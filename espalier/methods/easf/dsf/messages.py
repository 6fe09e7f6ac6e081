"""The protocol's vocabulary: kinds of control messages, timers and phases, each with who sends it to whom and when.

Plain strings, because they travel and are saved. `agent` says which handler takes which.
"""

from __future__ import annotations

# -- formation: the first clusters -------------------------------------------------------------------------------

#: device to its neighbours, when it looks for a cluster: its degree; the same comes back, or `CLUSTERED`
HELLO = "hello"
#: device that has a cluster to a neighbour that said hello: its cluster, central node and tree
CLUSTERED = "clustered"
#: device to its neighbours, once their degrees are known: its two-hop return probability
PROBABILITY = "probability"
#: first central node to everybody within the hop limit, passed on by neighbours: hops and delay so far
ADVERT = "advert"

# -- transfer: central nodes nearby exchange members ---------------------------------------------------------------

#: central node to those nearby, whenever it changes: size of its cluster and sum of statistics
SIZE = "size"
#: central node of a large cluster to those nearby, once per sweep: members that it would let go
OFFER = "offer"
#: central node to who has made an offer: the one member that it would like
REQUEST = "request"
#: the answer: the member's description, or none if it is not let go
REPLY = "reply"
#: central node to a member that it has let go: whom to follow
TRANSFER = "transfer"

# -- membership of a cluster -------------------------------------------------------------------------------------

#: newcomer to central nodes within the hop limit: how large are you?
CLUSTER_QUERY = "cluster_query"
#: the answer: size, sum of statistics, mean statistic of all, other central nodes that it knows
CLUSTER_INFO = "cluster_info"
#: device (or, above level 0, central node) to a central node: take me in
JOIN = "join"
#: the answer while the cluster has no central node yet: you are in, wait for its view
JOIN_ACCEPTED = "join_accepted"
#: the answer of who does not lead the cluster: ask this one instead
JOIN_REDIRECT = "join_redirect"
#: who led a member so far, to that member: follow this one instead (or nobody)
REDIRECT = "redirect"
#: device to a central node that takes it for a member: it belongs elsewhere
LEAVE = "leave"
#: central node to its members, whenever the cluster changes: its view (term, version, successors, parent)
CLUSTER_VIEW = "cluster_view"
#: member to its central nodes, every so often: still here
HEARTBEAT = "heartbeat"

# -- election of a central node ------------------------------------------------------------------------------------

#: initiator of an election to the members: your delays to these, please
VOTE_REQUEST = "vote_request"
#: the answer: delays to the others, and which global model the voter has
VOTE = "vote"
#: member whose central node is gone to the first successor: you are next, and I am a member
SUCCEED = "succeed"
#: the answer of a successor that has forgotten the cluster: pass me over
NOT_A_MEMBER = "not_a_member"

# -- the tree above ------------------------------------------------------------------------------------------------

#: device to its neighbours, when its cluster or tree changes and now and then: cluster, central node, tree
BEACON = "beacon"
#: member to its central node, when a beacon tells of another cluster: adjacent clusters
ADJACENT = "adjacent"
#: central node without a parent to its members: send your beacons again
SEND_BEACONS = "send_beacons"
#: central node to an adjacent one: the oldest tree that it knows
OLDEST_TREE = "oldest_tree"
#: central node to who is said to lead an older tree: which tree are you in?
TREE_QUERY = "tree_query"
#: central node to its members, when it gives its cluster up: join this one (or look for one)
DISSOLVED = "dissolved"

# -- models and aggregators ----------------------------------------------------------------------------------------

#: new root to the voter with the newest global model: send it to my aggregator
MODEL_REQUEST = "model_request"
#: agent to the aggregator on its own host: you are the root, from this round and model on
BECOME_ROOT = "become_root"
#: agent to the aggregator on its own host: it leads no more, forget all
RESET = "reset"
#: aggregator to the device on its own host: an order has brought a newer global model
NEW_MODEL = "new_model"


class TimerKey:
    """Timers of an agent; those of `membership`, `election` and `tree` that say so are set per level."""

    HELLO = "hello"  #: neighbours that have not answered are not waited for
    PROBABILITY = "probability"  #: nor are their probabilities
    CHOOSE = "choose"  #: adverts have had time to arrive
    GATHER = "gather"  #: devices have had time to join a first central node
    SWEEP = "sweep"  #: the next sweep of offers
    QUERY = "query"  #: central nodes that have not answered a newcomer are not waited for
    JOIN = "join"  #: per level: who was asked to take this device in has not answered
    ANNOUNCE = "announce"  #: per level: send the cluster's view, several changes at once
    VOTE = "vote"  #: per level: members that have not voted are not waited for
    SUCCESSION = "succession"  #: per level: nobody has held the election that was due
    TREE = "tree"  #: nothing new has been heard of other trees
    ORPHAN = "orphan"  #: a cluster that this device leads may have no parent
    ROOT = "root"  #: the new root begins
    HEARTBEAT = "heartbeat"  #: the next heartbeat


class Phase:
    """What an agent does at level 0."""

    DISCOVER = "discover"  #: has said hello to its neighbours
    ELECT = "elect"  #: waits for its neighbours' probabilities
    CHOOSE = "choose"  #: is no central node, waits for adverts
    GATHER = "gather"  #: is a central node, waits for members
    TRANSFER = "transfer"  #: exchanges members with central nodes nearby
    VOTE = "vote"  #: lets its members vote
    QUERY = "query"  #: is a newcomer, has asked central nodes
    JOIN = "join"  #: has asked one to take it in
    MEMBER = "member"  #: has a view of its cluster
    REST = "rest"  #: has given up until a neighbour says hello


#: kinds of rows that agents write into the run's record: a device has another central node; it leads a cluster; what
#: stands for its data
JOINED_EVENT, ELECTED_EVENT, STATISTIC_EVENT = "joined", "elected", "statistic"
