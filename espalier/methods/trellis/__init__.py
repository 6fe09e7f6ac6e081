"""Trellis, the method of this project: HierFAVG with momentum, late work and label priors.

Begin at `method`. `study` sets it beside every method of the five papers in their headline settings, `claims.toml` says
what it must show there, `page.md` is its results page. The method may import `core`, `policies`, CSAHFL's pace and the
methods that grow trees; the study what describes and reads experiments, and the papers' studies.
"""
