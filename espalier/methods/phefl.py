"""PHE-FL: each edge gets the model that fits it.

Lee, Lee, …: Personalized Hierarchical Edge-enabled Federated Learning.
