"""What several methods share: merges, clustering, association, pacing, distances."""
