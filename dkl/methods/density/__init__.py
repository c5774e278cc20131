"""Densities of frequencies learned with the machine: tuned (Shilton et al. 2022), joint (Sinha & Duchi 2016, (9))."""
