"""How true the verdicts are: faults, pairs of them and benign disturbances, on simulated nodes in accelerated time."""
